"""One short file per command: typed arguments in, parts below called, a typed result out.

A command is a function. The command line is generated from its signature and docstring (cli.py), so the two cannot
drift. Heavy imports stand inside the functions: `vitreous --help` must not wait for torch.

A result knows how to show itself: `text()` for people, `records()` for `--json` (one object a line), `notes` for what
was assumed or changed on the way (the command line says them on standard error), and `exit_code`, which is 1 when the
result is bad news.

Modules:
    choose        images to label next
    bench         speed and memory beside other libraries
    convert       between official, timm, Hugging Face and vitreous checkpoints
    demo/         everything on built-in data, offline
    doctor        check a data set
    embed         features of a data set to a file
    environment   versions and machine, for bug reports
    evaluate      measure a checkpoint on labelled images
    fewshot       measure frozen features with a few labels
    finetune      train from a checkpoint
    inspect       figures and statistics of a model
    list          known models, weights, recipes and data sets
    predict       classes of images, one row each
    pretrain      train from scratch
    serve         HTTP API, explorer and runs view
    shard         write a data set as tar shards
    similar       nearest images and clusters of such a file
    study         the paper's experiments
    training_run  what `pretrain` and `finetune` share
    types         argument types and the protocol of results
    verify        compare two checkpoints operation by operation
    vtab          transfer to many small tasks
"""

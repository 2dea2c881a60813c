"""One training loop for all objectives and recipes.

Modules:
    batch_fitting     batch to passes that fit into memory
    build_options     options from the command line and Python
    callbacks         events of a run, and who hears of them
    choose_model      model of a run and size of its images
    choose_recipe     recipe of a run
    config            RunConfig: everything resolved; RunRecord: config.json
    data_split        training and validation images of a run
    ema               Polyak average of the weights
    feature_loader    batches of features computed once
    linear_probe      closed-form start and fixed features of a run that trains the head alone
    loop              batch, loss, gradient, step
    memory            memory estimate
    mistakes          `mistakes.json`
    outcomes          `outcomes.csv`
    fewshot_along     few-shot accuracy at each evaluation
    objectives/       classification, masked patches
    optim             parameter groups and optimisers
    options           TrainOptions
    parallel          DDP, FSDP2, hybrid
    progress_display  progress of a run
    recipes/          how to train: the paper's tables and automatic recipes
    resolve           options to RunConfig, with reasons
    run_folder        files of a run
    run_report        contents of the HTML report
    schedule          learning rate of each step
    state             training state for exact resume
    sweep             learning-rate sweep
    threads           number of threads, measured once
    trackers          TensorBoard and W&B
    trainer           RunConfig to a finished run
    validation        validation inside training
"""

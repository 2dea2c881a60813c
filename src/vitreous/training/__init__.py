"""One training loop for all objectives and recipes.

Modules:
    alternatives      models and image sizes that a budget chooses among
    auto_model        `--model auto`
    batch_fitting     batch to passes that fit into memory
    build_options     options from the command line and Python
    callbacks         events of a run, and who hears of them
    choose_model      model of a run and size of its images
    choose_recipe     recipe of a run
    closed_form_start  head by ridge regression before the first step; fixed features of a linear probe
    config            RunConfig: everything resolved; RunRecord: config.json
    data_split        training and validation images of a run
    distillation      the predictions of a larger model, learnt beside the labels
    ema               Polyak average of the weights
    feature_loader    batches of features computed once
    lora              factors of low rank beside frozen matrices, and their merging
    loop              batch, loss, gradient, step
    memory            memory estimate
    mistakes          `mistakes.json`
    outcomes          `outcomes.csv`
    fewshot_along     few-shot accuracy at each evaluation
    muon              Muon for hidden matrices beside Adam
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
    timing            --minutes as a number of steps
    trackers          TensorBoard and W&B
    trainer           RunConfig to a finished run
    validation        validation inside training
"""

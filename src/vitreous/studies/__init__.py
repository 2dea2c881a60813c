"""Many runs that make one table, one figure and one verdict: the paper's experiments, VTAB-1k and other suites.

Modules:
    axial_study             axial and full attention (appendix D.6)
    budget                  size of a study in the time there is
    check_cells             whether the data is enough for a grid
    compute_study           transfer against compute (Figure 5)
    cost_figure             figure of the cost study
    cost_rows               rows of the cost study and their file
    cost_study              speed and largest batch by image size (appendix D.5)
    data_size_study         amount of pre-training data (Figures 3 and 4)
    distance_study          attention distance (Figures 7 and 11)
    head_study              class token or average pooling (Figure 9)
    measures                what is measured at the end of a cell
    optimizer_study         Adam or SGD (Table 7)
    paper_figures           the paper's own figures
    paper_tables            the numbers that the paper published
    positions_study         position embeddings (Table 8)
    registry                studies by name
    resolution_study        fine-tuning at higher resolution (section 3.2)
    results                 runs.csv, outcomes and verdicts
    results_page            the page of all studies
    rows                    rows as files, and the loop over cells that have none
    run_cells               a study's cell: its runs, and what is measured
    run_study               `vitreous study` as a whole
    run_suite               `vitreous vtab` as a whole
    self_supervision_study  masked patches (section 4.6)
    shape_study             depth, width, MLP and patch (Figure 8)
    stages                  runs that the studies share
    statistics              paired statistics over seeds
    study                   what a study is: arms, claims, cells
    study_data              data sets of a study, prepared once
    study_figure            figure of a study
    suite                   a suite: tasks and a protocol
    suite_cells             one task and seed: fine-tuned, or in closed form
    suite_data              examples and test images of a task
    suite_options           options of `vitreous vtab`
    suite_summary           means over seeds, groups and tasks, and their figure
    suite_table             table beside the paper's
    transfer_study          pre-trained against scratch (Tables 2 and 5)
    vtab                    VTAB-1k as a suite
"""

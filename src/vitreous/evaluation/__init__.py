"""Evaluation: accuracy, calibration, robustness and few-shot results of a model on labelled images.

Modules:
    accuracy            predictions to numbers
    add_classes         further classes for a saved head
    baseline            closed-form accuracy of frozen features before training
    calibration         calibration error and reliability diagram
    choose              which images to label next
    choose_run          `vitreous choose`: from options to a manifest and a page
    class_mapping       data classes to model classes
    class_tables        per-class tables and confusion matrix of a report
    closed_form_head    linear head by ridge regression and a leave-one-out temperature
    corruptions         deterministic image corruptions
    counts              exact sums over batches and ranks
    coverage            prediction sets on held-out images
    dense               masks from patch features in closed form
    dense_figure        predicted masks over their images
    dense_run           `vitreous fewshot --dense`: from options to results
    evaluate            `vitreous evaluate`: from options to results
    evaluation_dir      output folder
    evaluation_report   contents of the HTML report
    evaluation_result   every number, and what the terminal shows
    evaluators          `update(batch, outputs)`, `result()`
    fewshot             few-shot evaluator
    fewshot_curve       learning curve and its verdict
    fewshot_run         `vitreous fewshot`: from options to results
    fewshot_tasks       data and checkpoint to few-shot features
    headline            one-sentence summary of an evaluation
    intervals           Wilson and bootstrap intervals
    knn                 accuracy of weighted nearest neighbours
    label_errors        likely label errors
    majority            accuracy of the majority class
    mcnemar             paired test of two models
    predictions         predictions for every image of a data set
    report_charts       charts of the report
    report_gallery      images of the report
    ridge               ridge regression for all strengths at once
    robustness          accuracy under corruptions
    saved_head          closed-form head as a checkpoint
    soup                average of the weights of several checkpoints
    validation_result   metrics and worst mistakes of a validation
"""

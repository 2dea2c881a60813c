"""Run models on images: batches, runner, predictions, features.

Modules:
    batches             images of any kind to preprocessed batches
    distributed_pass    ranks' shares merged into data order
    feature_cache       features on disk
    features            features of a data set
    image_list          file names, lazily
    nearest_neighbours  most similar images
    precision           one precision for all ranks
    predict_run         `vitreous predict`: from options to rows
    predictions         logits to top-k classes
    predictor           image list to rows of predictions
    resumable_output    row files that survive a kill
    rows                JSON and CSV rows
    runner              a model on a device in a precision
    throughput          images per second of a stream
"""

"""Run models on images: batches, runner, predictions, features.

Modules:
    batches             images of any kind to preprocessed batches
    distributed_pass    ranks' shares merged into data order
    embed_run           `vitreous embed`: from options to a file of features
    engines/            torch, compile, onnxruntime, OpenVINO behind one interface
    eval_mode           a model on a device and in eval mode for a while
    feature_cache       features kept for the next time
    feature_export      features as NumPy, CSV and Parquet
    feature_file        the file of features
    features            features of a data set
    image_list          file names, lazily
    kmeans              clusters of features
    nearest_neighbours  most similar images
    outputs             logits and features of a batch
    precision           one precision for all ranks
    predict_run         `vitreous predict`: from options to rows
    prediction_sets     sets of classes with a chosen coverage
    predictions         logits to top-k classes
    predictor           image list to rows of predictions
    resumable_output    row files that survive a kill
    rows                JSON and CSV rows
    runner              a model on a device in a precision
    similar_page        the page of `vitreous similar`
    similar_run         `vitreous similar`: nearest images and clusters
    throughput          images per second of a stream
    thumbnails          small images for a page
"""

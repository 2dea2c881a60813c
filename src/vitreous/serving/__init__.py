"""HTTP server: API, attention explorer and runs view.

Modules:
    app                routes, as one ASGI application
    attention_payload  response of `POST /attention`
    batcher            dynamic batching
    byte_budget        bound on bytes held for clients
    examples           example images
    http_errors        error responses
    image_decode       bounded decoding of uploads
    limits             all limits
    metrics            Prometheus metrics
    middleware         origin, host, time limit, security headers
    openapi            OpenAPI description
    pipeline           upload to model outputs
    query_parameters   validated query parameters
    run_metrics        incremental reading of metrics.jsonl
    runs               runs in a folder and their curves
    serve              `vitreous serve`: checkpoints to a running server
    served_model       a loaded model and its description
    server             socket, thread and shutdown
    static_files       files of the pages
    uploads            request body to image bytes
"""

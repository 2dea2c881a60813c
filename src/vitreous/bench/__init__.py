"""Throughput, latency, memory and start-up time beside other libraries, in one interleaved run.

Every contender is a process of its own, so that none profits from what another asked of the C library, its peak memory is
its own, and a crash ends only itself. All have the same weights, and their outputs are compared before anything is timed.

Modules:
    bench_page          the result as a page of documentation
    bench_result        rows, table, records and chart
    bench_run           `vitreous bench`: from options to a result
    cold_start          one prediction in a new process
    contender           the child process: builds its work, then works in turns
    exported_ours       our int8 files
    exported_peers      onnxruntime and OpenVINO on timm's export
    loaders             from image files to batches: ours and the peers'
    machine             name of this machine and its matrix-multiply peak
    model_steps         inference and training steps of one model
    models              the same weights for every library
    photographs         image files for loaders
    race                child processes that take turns
    serving_load        many clients on a server
    torchvision_import  torchvision, where its compiled operators do not load
"""

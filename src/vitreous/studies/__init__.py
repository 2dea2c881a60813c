"""Many runs that make one table and one figure: VTAB-1k and other suites.

Modules:
    cost_figure    figure of the cost study
    cost_rows      rows of the cost study and their file
    cost_study     speed and largest batch by image size (appendix D.5)
    paper_tables   the numbers that the paper published
    suite          a suite: tasks and a protocol
    suite_chart    bar chart
    suite_data     examples and test images of a task
    suite_options  options to a study
    suite_results  results on disk
    suite_run      all tasks and seeds, resumable
    suite_summary  means over seeds, groups and tasks
    suite_table    table beside the paper's
    suite_task     one task and seed
    vtab           VTAB-1k as a suite
"""

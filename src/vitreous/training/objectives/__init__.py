"""What is learnt: classification, or masked patches.

Modules:
    build           the objective of a run
    classification  softmax and sigmoid cross-entropy
    masked_patch    masked patch prediction (appendix B.1.2)
    objective       what every objective can do
    patch_targets   targets of masked patches
"""

"""What is learnt: classification, or masked patches.

Modules:
    classification  softmax and sigmoid cross-entropy
    masked_patch    masked patch prediction (appendix B.1.2)
    patch_targets   targets of masked patches
"""

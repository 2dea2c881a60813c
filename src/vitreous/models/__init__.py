"""The architectures of the paper: Vision Transformers, hybrids, BiT and axial ResNets.

Modules:
    attend          softmax(q k^T) v, by torch or in parts
    attention_maps  attention probabilities of chosen layers and heads
    axial           axial attention of a ViT (appendix D.6)
    axial_resnet    ResNets with axial attention (appendix D.6)
    build           config to module
    config          typed configs with all numerics
    cost            parameters, MACs, activation memory
    initialise      the authors' initialisers
    layers          MLP, LayerScale, stochastic depth
    names           grammar of model names
    pooling         attention pooling
    positions       position embeddings (appendix D.4) and resizing
    resnet          BiT ResNets in both forms
    rotary          rotary positions (DINOv3)
    stem            a few convolutions before the patches
    token_merging   fewer tokens after every layer (ToMe)
    vit             the Vision Transformer (section 3.1)
"""

"""Checkpoints: find, download, read, adapt and write ours, the authors', timm's and Hugging Face's.

Modules:
    arrays                lazy, safe array files
    bounded_zip           zip archives with limits
    card                  model card
    catalogue             known pretrained checkpoints
    checkpoint            the vitreous format
    formats               the four families
    huggingface           ViT, DeiT, DINOv2, MAE of transformers
    huggingface_dinov3    DINOv3 of transformers
    huggingface_settings  what every config.json of transformers says
    huggingface_towers    CLIP and SigLIP of transformers
    locate                names and paths to files
    mapping               two-way rules between tensors and arrays
    official              the authors' .npz files
    preprocessing         preprocessing of each family
    read                  any checkpoint to config and tensors
    timm                  timm state dicts
    timm_dinov3           DINOv3 of timm
    timm_settings         timm's config.json
    torch_file            .pth without pickle
    transfer              new size, head or patch
    unfinished            best checkpoint of an unfinished run
    write                 checkpoints in any format
"""

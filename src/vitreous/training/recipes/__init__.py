"""How to train: the paper's tables as data, and how they are fitted to other data.

Modules:
    automatic  recipes for unknown data, with reasons
    fitting    recipes adapted to data, batch, length and size
    recipe     the Recipe dataclass
    tables     the paper's tables, BiT-HyperRule, AugReg
"""

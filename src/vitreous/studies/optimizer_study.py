"""Adam against SGD for pre-training ResNets (Table 7, appendix D.1)."""

from __future__ import annotations

from vitreous.studies.stages import RATES, families, finetune, upstream
from vitreous.studies.study import Arm, Axes, Claim, Scale, Study, Tuning

_SGD = {"optimizer": "sgd", "weight_decay": 1e-4}  # decay as for BiT
# Wider than the other studies' lists: at the first registration (rates up to 3e-3 and 0.3) both optimisers chose the largest.
_ADAM_RATES = (*RATES, 1e-2, 3e-2)
_SGD_RATES = (0.03, 0.1, 0.3, 1.0, 3.0)


def _arms(scale: Scale) -> list[Arm]:
    model, fields = families(scale)["ResNet"]
    arms = []
    for name, recipe in (("Adam", {}), ("SGD", _SGD)):
        stage = upstream(scale, model, fields, name, recipe=recipe)
        arms.append(Arm(name, (stage,), {"family": "few-shot"}, "fewshot", scale.data))
        tuned = finetune(scale, f"{name}, fine-tuned", images=scale.images // 4, per_class=50)
        arms.append(Arm(f"{name}, fine-tuned", (stage, tuned), {"family": "fine-tuned"}))
    return arms


STUDY = Study(
    name="optimizer",
    title="Adam or SGD for pre-training ResNets",
    paper="Table 7, appendix D.1",
    sentence="Adam pre-training outperforms SGD pre-training on most data sets.",
    claims=(
        Claim(
            "ResNets pre-trained with Adam transfer better than with SGD.",
            "few-shot accuracy, Adam minus SGD, points",
            {"Adam": 1, "SGD": -1},
        ),
        Claim(
            "Fine-tuned, too, ResNets pre-trained with Adam transfer better.",
            "fine-tuned accuracy, Adam minus SGD, points",
            {"Adam, fine-tuned": 1, "SGD, fine-tuned": -1},
        ),
    ),
    arms=_arms,
    tunings=lambda scale: [
        Tuning("Adam", "Adam", _ADAM_RATES),
        Tuning("SGD", "SGD", _SGD_RATES),
        Tuning("Adam, fine-tuned", "Adam, fine-tuned", _ADAM_RATES, stage=1),
        Tuning("SGD, fine-tuned", "SGD, fine-tuned", _ADAM_RATES, stage=1),
    ],
    axes=Axes(y_label="accuracy on DATA (%)"),
    upstream="builtin:letters?size={size}&count={count}",
)

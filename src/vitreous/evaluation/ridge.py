"""The paper's few-shot classifier: ridge regression from frozen features to {-1, 1}, in closed form.

    W = (X^T X + l2 I)^-1 X^T Y

X: features, standardised with the mean and deviation of the training subset, and a constant 100 as the last column, so that
the penalty on the bias is next to nothing. Y: 1 where an image has a label, -1 elsewhere. One eigendecomposition, of X^T X
or of X X^T, whichever is smaller, gives W for every l2 by a division, and so it gives what leaving out each example in turn
would have predicted: with A = X X^T + l2 I, the residual of example i without it is (A^-1 Y)_i / (A^-1)_ii.

Leaving one out keeps the standardisation of the whole subset. Nothing is drawn at random and nothing depends on a start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from vitreous.core.device import using_threads
from vitreous.core.errors import VitreousError

L2S = tuple(2.0**power for power in range(-10, 20))  # what the authors try
BIAS = 100.0
EPSILON = 1e-5  # added to the deviations: a constant column becomes zeros
_ENTRIES = 1 << 23  # float64 numbers in a block of rows: 64 MB, of which two or three are held at once
_BASIS = 1 << 25  # float32 numbers in the products that span all l2
_EXACT = 1e-8  # of the norm of W, which those products may miss: less than float32 does
_ONE_THREAD = 2048  # up to this size, threads of an eigendecomposition wait for each other longer than they work


class Ridge:
    """The fit for every l2 at once. `features` (n, d) are kept and not changed; the fit is in float64.

    With few examples, X X^T = Q E Q^T and W = [X^T Q] (E + l2)^-1 [Q^T Y]; with many, X^T X = Q E Q^T and
    W = [Q] (E + l2)^-1 [Q^T X^T Y]. What stands in brackets is kept, as `_left` and `_right`.
    """

    def __init__(self, features: Tensor, labels: Sequence[tuple[int, ...]], classes: int) -> None:
        _check(features, labels)
        self.n, self.width, self.classes = *features.shape, classes
        self._features = features = features.detach().cpu()
        self._rows = torch.tensor([row for row, own in enumerate(labels) for _ in set(own)])
        self._columns = torch.tensor([label for own in labels for label in sorted(set(own))])
        self._dual = self.n <= self.width + 1
        if self._dual:
            self._fit_to_few()
        else:
            self._fit_to_many()

    def _fit_to_few(self) -> None:
        self.mean, self.std = _moments(self._features)
        gram = torch.zeros(self.n, self.n, dtype=torch.float64)
        for part in _parts(self.width + 1, self.n):
            gram += _product(self._standardised_columns(part))
        self._values, self._vectors = _eigen(gram)
        sums = self._class_sums(self._vectors)
        self._right = 2 * sums.T - self._vectors.sum(dim=0)[:, None]  # Y is 2 - 1 at labels and -1 elsewhere
        columns = (self._standardised_columns(part) for part in _parts(self.width + 1, self.n))
        self._left = torch.cat([own.T @ self._vectors for own in columns])

    def _fit_to_many(self) -> None:
        """From centred rows: their products have the deviations on the diagonal, so no pass is made to find them.

        Columns that are centred are orthogonal to the constant. It is an eigenvector by itself, whose eigenvalue, 10,000 times
        the number of examples, would cost the small ones their digits.
        """
        mean = _sums(self._features) / self.n
        gram = torch.zeros(self.width, self.width, dtype=torch.float64)
        by_class = torch.zeros(self.classes, self.width, dtype=torch.float64)
        sums = torch.zeros_like(mean)
        for part in _parts(self.n, self.width):
            rows = self._features[part] - mean
            gram += _product(rows.T)
            by_class += self._class_sums(rows, part.start)
            sums += rows.sum(dim=0)
        shift, counts = sums / self.n, torch.bincount(self._columns, minlength=self.classes)
        gram -= self.n * torch.outer(shift, shift)  # the rounding of the mean, which a division by 1e-5 would magnify
        by_class -= counts[:, None] * shift
        self.mean, self.std = mean + shift, (gram.diagonal() / self.n).clamp(min=0).sqrt() + EPSILON
        values, vectors = _eigen(gram / self.std / self.std[:, None])
        self._values = torch.cat([values, torch.tensor([BIAS**2 * self.n], dtype=torch.float64)])
        self._left = torch.block_diag(vectors, torch.ones(1, 1, dtype=torch.float64))
        constant = BIAS * (2 * counts - self.n).double()
        self._right = torch.cat([vectors.T @ (2 * by_class / self.std).T, constant[None]])

    def standardised(self, features: Tensor) -> Tensor:
        """Rows of X: as the training subset has it, and the constant."""
        rows = torch.empty(len(features), self.width + 1, dtype=torch.float64)
        rows[:, :-1] = features.detach()
        rows[:, :-1].sub_(self.mean).div_(self.std)
        rows[:, -1] = BIAS
        return rows

    def _standardised_columns(self, part: slice) -> Tensor:
        """Columns of X; the last of them all is the constant."""
        own = (self._features[:, part].double() - self.mean[part]) / self.std[part]
        return own if part.stop <= self.width else torch.cat([own, torch.full((self.n, 1), BIAS, dtype=torch.float64)], dim=1)

    def _class_sums(self, rows: Tensor, start: int = 0) -> Tensor:
        """Of each class, the sum of `rows`, which belong to the examples from `start` on: all that is needed of Y."""
        own = (self._rows >= start) & (self._rows < start + len(rows))
        chosen = self._rows[own] - start
        each = rows if torch.equal(chosen, torch.arange(len(rows))) else rows[chosen]  # one label each: no copy
        return torch.zeros(self.classes, rows.shape[1], dtype=torch.float64).index_add_(0, self._columns[own], each)

    # What it gives -----------------------------------------------------------------------------------------------------

    def weights(self, l2: float) -> Tensor:
        """W, (d + 1, classes): for standardised features, and in the last row for the constant."""
        return (self._left / (self._values + _positive(l2))) @ self._right

    def weights_for(self, l2s: Sequence[float] = L2S) -> Iterator[Tensor]:
        """`weights` of each l2 in turn, for a fraction of the work: in float32, and equal to a millionth of their size.

        The factors 1 / (e + l2), as functions of the eigenvalue e, are so alike for neighbouring l2 that some ten of their
        combinations span all thirty, unless the eigenvalues spread over many powers of ten. Then products are made of
        those alone, and W of each l2 is a sum of the products.
        """
        factors, combinations = self._spanning(l2s)
        each = len(self._left) * self.classes
        left, right = self._left.float(), self._right.float()
        if 2 * len(factors) > len(l2s) or len(factors) * each > _BASIS:  # nothing to gain, or no room to gain it in
            for l2 in l2s:
                yield (left / (self._values + l2).float()) @ right
            return
        products = torch.empty(len(factors), each)
        for factor, product in zip(factors.float(), products, strict=True):
            torch.mm(left * factor, right, out=product.view(-1, self.classes))
        together = max(1, _ENTRIES // each)
        for start in range(0, len(l2s), together):
            yield from (combinations[start : start + together].float() @ products).view(-1, len(left), self.classes)

    def _spanning(self, l2s: Sequence[float]) -> tuple[Tensor, Tensor]:
        """Factors (r, eigenvalues), and what of them makes up 1 / (e + l2), (l2s, r).

        The columns of `_left` are orthogonal, so |W| is the norm of the factors times the norms of `_left` and `_right`. In
        that measure the singular vectors are the best choice, and the first one left out bounds the error.
        """
        own = torch.tensor([_positive(l2) for l2 in l2s], dtype=torch.float64)
        inverse = 1 / (self._values[:, None] + own)
        weighted = inverse * (self._left.norm(dim=0) * self._right.norm(dim=1))[:, None]
        norms = weighted.norm(dim=0)
        norms[norms == 0] = 1.0
        _, sizes, turned = torch.linalg.svd(weighted / norms, full_matrices=False)
        kept = turned[: max(1, int((sizes > _EXACT).sum()))]
        return kept @ (inverse / norms).T, (kept * norms).T

    def predict(self, features: Tensor, l2: float) -> Tensor:
        """Scores (m, classes), about 1 where an image has the label and about -1 elsewhere."""
        nothing = torch.zeros(0, self.classes, dtype=torch.float64)
        return torch.cat([nothing, *self._scores(features, l2)])

    def classify(self, features: Tensor, l2: float) -> Tensor:
        """The class with the highest score, (m,), without keeping the scores."""
        nothing = torch.zeros(0, dtype=torch.int64)
        return torch.cat([nothing, *(scores.argmax(dim=1) for scores in self._scores(features, l2))])

    def _scores(self, features: Tensor, l2: float) -> Iterator[Tensor]:
        weights = self.weights(l2)
        parts = _parts(len(features), max(self.width + 1, self.classes))
        return (self.standardised(features[part]) @ weights for part in parts)

    def classify_for(self, features: Tensor, l2s: Sequence[float] = L2S) -> Tensor:
        """`classify` for each of many l2, (l2s, m), in float32: to choose among them."""
        named = torch.empty(len(l2s), len(features), dtype=torch.int64)
        for place, weights in enumerate(self.weights_for(l2s)):
            for part in _parts(len(features), max(self.width + 1, self.classes)):
                torch.argmax(self.standardised(features[part]).float() @ weights, dim=1, out=named[place, part])
        return named

    def left_out(self, l2: float) -> Tensor:
        """Scores (n, classes) of each example by the fit to all others."""
        return torch.cat([self._left_out(*self._projected(part), _positive(l2)) for part in self._blocks()])

    def leave_one_out(self, l2s: Sequence[float] = L2S) -> tuple[float, ...]:
        """The accuracy of every l2 on the training examples, each predicted by a fit to all the others. An example with
        several labels is right if the highest score is one of them's."""
        right = [0] * len(l2s)
        for part in self._blocks():
            projected, targets = self._projected(part)
            for place, l2 in enumerate(l2s):
                named = self._left_out(projected, targets, _positive(l2)).argmax(dim=1, keepdim=True)
                right[place] += int((targets.gather(1, named) > 0).sum())
        return tuple(count / self.n for count in right)

    def choose(self, l2s: Sequence[float] = L2S) -> float:
        """The l2 with the best leave-one-out accuracy; of equals the largest, which trusts single examples least."""
        return max(zip(self.leave_one_out(l2s), l2s, strict=True))[1]

    def _blocks(self) -> Iterator[slice]:
        return _parts(self.n, max(len(self._values), self.classes))

    def _projected(self, part: slice) -> tuple[Tensor, Tensor]:
        """These examples in the eigenvectors' coordinates, and their rows of Y."""
        rows = self._vectors[part] if self._dual else self.standardised(self._features[part]) @ self._left
        targets = torch.full((len(rows), self.classes), -1.0, dtype=torch.float64)
        own = (self._rows >= part.start) & (self._rows < part.start + len(rows))
        targets[self._rows[own] - part.start, self._columns[own]] = 1.0
        return rows, targets

    def _left_out(self, projected: Tensor, targets: Tensor, l2: float) -> Tensor:
        inverse = 1 / (self._values + l2)
        fitted = (projected * inverse) @ self._right
        influence = projected.square() @ inverse
        if self._dual:  # A^-1 Y and the diagonal of A^-1: exact also where l2 is small and 1 - influence would be lost
            return targets - fitted / influence[:, None]
        return (fitted - influence[:, None] * targets) / (1 - influence)[:, None]


def _check(features: Tensor, labels: Sequence[tuple[int, ...]]) -> None:
    if not len(features) or not all(labels):
        unlabelled = sum(not own for own in labels)
        raise VitreousError(f"a linear classifier needs labelled images; {unlabelled:,} of {len(features):,} have no label")
    if not _sums(features).isfinite().all():  # one pass; which rows they are is asked only then
        broken = sum(int((~features[part].isfinite()).any(dim=1).sum()) for part in _parts(*features.shape))
        raise VitreousError(f"{broken:,} of {len(features):,} images have features that are not finite; the model is broken")


def _sums(features: Tensor) -> Tensor:
    return torch.stack([features[part].sum(dim=0, dtype=torch.float64) for part in _parts(*features.shape)]).sum(dim=0)


def _moments(features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each column."""
    mean = _sums(features) / len(features)
    sums, squares = torch.zeros_like(mean), torch.zeros_like(mean)
    for part in _parts(*features.shape):
        centred = features[part] - mean
        sums += centred.sum(dim=0)
        squares += centred.square_().sum(dim=0)
    shift = sums / len(features)  # the rounding of the mean, which the division by 1e-5 would magnify
    return mean + shift, (squares / len(features) - shift.square()).clamp_(min=0).sqrt() + EPSILON


def _product(matrix: Tensor) -> Tensor:
    """matrix matrix^T. numpy sees that it is symmetric and computes one half of it; torch computes both."""
    array = matrix.numpy()
    return torch.from_numpy(array @ array.T)


def _eigen(gram: Tensor) -> tuple[Tensor, Tensor]:
    with using_threads(1 if len(gram) <= _ONE_THREAD else torch.get_num_threads()):
        values, vectors = torch.linalg.eigh(gram)
    return values.clamp_(min=0), vectors  # what lies below 0 is rounding


def _parts(count: int, width: int) -> Iterator[slice]:
    """Blocks of 0 .. count - 1, whose rows of `width` numbers fit into bounded memory."""
    rows = max(1, _ENTRIES // width)
    return (slice(start, min(start + rows, count)) for start in range(0, count, rows))


def _positive(l2: float) -> float:
    if not 0 < l2 < float("inf"):
        raise VitreousError(f"l2={l2:g}: must be above 0, as 1024")
    return l2

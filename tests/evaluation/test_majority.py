"""The majority-class rate, against labels counted one by one."""

from __future__ import annotations

from vitreous.evaluation.majority import describe_majority, majority_rate


def test_the_majority_class_is_that_of_training_where_it_is_known():
    train, test = [0, 0, 0, 1, 1, 2], [1, 1, 1, 0, 2, 1, 0, 0]
    guess = max(set(train), key=train.count)
    expected = sum(label == guess for label in test) / len(test)
    assert majority_rate([3, 4, 1], train=[3, 2, 1]) == expected == 3 / 8
    assert majority_rate([3, 4, 1]) == 4 / 8
    assert describe_majority(4 / 8) == "the largest class alone: 50.0%"


def test_images_with_several_labels_count_once():
    labels = [(0, 1), (1,), (1, 2), (2,)]
    assert majority_rate([1, 3, 2], n=len(labels)) == sum(1 in own for own in labels) / len(labels)


def test_nothing_evaluated():
    assert majority_rate([0, 0]) == 0.0

"""Nearest neighbours and logistic regression, against scikit-learn and by hand."""

import pytest
import torch
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier

from vit.features import classifiers
from vit.features.classifiers import knn_accuracy, knn_accuracy_left_out, linear_accuracy


def clusters(count, spread, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    centres = torch.eye(3, 5) * 4 + 1
    return centres[labels] + spread * torch.randn(count, 5, generator=generator), labels


@pytest.mark.parametrize("neighbours", [1, 7, 1000])
def test_nearest_neighbours_are_those_of_scikit_learn_with_the_same_weights(neighbours):
    (known, labels), (asked, answers) = clusters(211, 2.0, 0), clusters(97, 2.0, 1)
    known, asked = (torch.nn.functional.normalize(x, dim=1).double() for x in (known, asked))
    # The square of a Euclidean distance between unit vectors is 2 - 2 cosine.
    theirs = KNeighborsClassifier(
        min(neighbours, 211), weights=lambda d: torch.tensor(-(d**2) / 2 / 0.07).exp().numpy()
    )
    expected = theirs.fit(known.numpy(), labels.numpy()).score(asked.numpy(), answers.numpy())
    assert knn_accuracy(known, labels, asked, answers, neighbours) == pytest.approx(expected)


@pytest.mark.parametrize("neighbours", [1, 7, 1000])
def test_neighbours_among_the_other_images_are_those_without_the_image(neighbours, monkeypatch):
    monkeypatch.setattr(classifiers, "AT_ONCE", 17 * 53)
    features, labels = clusters(53, 2.0, 0)
    expected = 0.0
    for number in range(53):
        others = torch.arange(53) != number
        alone = features[number : number + 1], labels[number : number + 1]
        expected += knn_accuracy(features[others], labels[others], *alone, neighbours) / 53
    assert knn_accuracy_left_out(features, labels, neighbours) == pytest.approx(expected)


def test_images_of_its_own_group_do_not_judge_an_image(monkeypatch):
    monkeypatch.setattr(classifiers, "AT_ONCE", 17 * 53)
    features, labels = clusters(53, 2.0, 0)
    groups = torch.arange(53) // 4
    alone = [
        knn_accuracy(
            features[groups != group], labels[groups != group], *(x[groups == group] for x in (features, labels))
        )
        for group in range(14)
    ]
    expected = sum(share * int((groups == group).sum()) for group, share in enumerate(alone)) / 53
    assert knn_accuracy_left_out(features, labels, groups=groups) == pytest.approx(expected)
    assert knn_accuracy_left_out(features, labels) != pytest.approx(expected)
    with pytest.raises(ValueError, match="all 53 images are of one group, so none has a neighbour outside"):
        knn_accuracy_left_out(features, labels, groups=torch.zeros(53))


@pytest.mark.parametrize("at_once", [1, 500])
def test_no_more_cosines_are_computed_at_once_than_memory_is_meant_for(at_once, monkeypatch):
    monkeypatch.setattr(classifiers, "AT_ONCE", at_once)
    vote, counted = classifiers._vote, []
    monkeypatch.setattr(
        classifiers, "_vote", lambda cosines, *rest: counted.append(cosines.numel()) or vote(cosines, *rest)
    )
    features, labels = clusters(53, 2.0, 0)
    knn_accuracy(features, labels, features, labels)
    knn_accuracy_left_out(features, labels)
    assert max(counted) <= max(at_once, 53)


def test_a_linear_classifier_separates_what_is_separable_and_not_noise():
    (known, labels), (asked, answers) = clusters(60, 0.2, 0), clusters(30, 0.2, 1)
    assert linear_accuracy(known, labels, asked, answers) == 1.0
    noise, other_noise = torch.randn(2, 300, 5, generator=torch.Generator().manual_seed(2))
    assert linear_accuracy(noise, torch.arange(300) % 3, other_noise, torch.arange(300) % 3) < 0.45


def test_a_single_image_of_a_class_suffices():
    features, labels = torch.eye(3), torch.arange(3)
    assert linear_accuracy(features, labels, features, labels) == 1.0


def test_a_linear_classifier_that_has_not_converged_says_so(monkeypatch):
    torch.manual_seed(0)
    features, labels = torch.randn(60, 5), torch.arange(60) % 3
    monkeypatch.setattr("vit.features.classifiers.ITERATIONS", 2)
    with pytest.warns(UserWarning, match="the linear classifier has not converged after 2 iterations: its accuracy"):
        linear_accuracy(features, labels, features, labels)


@pytest.mark.parametrize("classifier", [knn_accuracy, linear_accuracy])
def test_features_without_labels_are_refused(classifier):
    with pytest.raises(ValueError, match="3 features have 2 labels: give one label for each image"):
        classifier(torch.eye(3), torch.arange(2), torch.eye(3), torch.arange(3))


@pytest.mark.parametrize("classifier", [knn_accuracy, linear_accuracy])
@pytest.mark.parametrize("labels", [torch.arange(3)[:, None], torch.eye(3).long(), torch.arange(3.0)], ids=str)
def test_labels_that_are_not_one_whole_number_for_each_image_are_refused(classifier, labels):
    right = torch.arange(3)
    for train, test in ((labels, right), (right, labels)):
        with pytest.raises(ValueError, match="give a whole number for each image"):
            classifier(torch.eye(3), train, torch.eye(3), test)


@pytest.mark.parametrize("classifier", [knn_accuracy, linear_accuracy])
def test_images_without_a_class_are_refused(classifier):
    known, some = torch.arange(3), torch.tensor([-1, 1, -1])
    for train, test in ((some, known), (known, some)):
        with pytest.raises(ValueError, match=r"^2 images have no class \(a label below 0\): leave them out$"):
            classifier(torch.eye(3), train, torch.eye(3), test)


def test_one_class_of_a_single_image_does_not_keep_the_penalty_from_being_chosen(monkeypatch):
    chosen = []
    search = GridSearchCV.fit
    monkeypatch.setattr(GridSearchCV, "fit", lambda self, *args: chosen.append(len(args[1])) or search(self, *args))
    features, labels = clusters(30, 0.2, 0)
    lonely, labels = torch.cat([features, 9 + features[:1]]), torch.cat([labels, labels.max()[None] + 1])
    assert linear_accuracy(lonely, labels, features, labels[:30]) == 1.0
    assert chosen == [30]

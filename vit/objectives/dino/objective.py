"""DINO: the LightningModule of a student that predicts the teacher's output for other views.

Letters in the einops patterns: g large views, v all views, b images, k prototypes.
"""

import copy
import math
from typing import Any

import torch
from einops import einsum, reduce
from torch import Tensor, nn

from vit.model.projected_encoder import ProjectedEncoder
from vit.model.vision_transformer import VisionTransformer
from vit.objectives.dino.evaluation import LEAST_INFORMATION, DistillationEvaluation
from vit.objectives.feature_evaluation import FEWEST
from vit.objectives.processes import mean_over_processes
from vit.objectives.view_learner import ViewLearner
from vit.support.checks import check_probability, check_share
from vit.training.description import Score
from vit.training.schedule import ProgressSchedule

TEACHER_TEMPERATURE, STUDENT_TEMPERATURE = 0.04, 0.1  # the teacher's is lower: it sharpens
PROJECTION_DIM = 64


class TeacherAndStudent(nn.Module):
    """A student, and a teacher of the same shape that is never trained, in evaluation mode."""

    def __init__(self, student: ProjectedEncoder) -> None:
        super().__init__()
        self.student = student
        self.teacher = copy.deepcopy(student).requires_grad_(False)

    def train(self, mode: bool = True) -> "TeacherAndStudent":
        """Set the mode of the student; the teacher stays in evaluation mode."""
        super().train(mode)
        self.teacher.eval()
        return self

    @torch.no_grad()
    def move_teacher(self, share: float) -> None:
        """Move the teacher by a share of the way to the student."""
        torch._foreach_lerp_(list(self.teacher.parameters()), list(self.student.parameters()), share)

    def no_weight_decay(self) -> set[str]:
        """Return the names of the student's parameters without weight decay; those of the teacher are not trained."""
        return {f"student.{name}" for name in self.student.no_weight_decay()}


class DINO(ViewLearner):
    """Learns features without labels: a student predicts the output of its teacher for other views (Caron et al. 2021).

    The teacher is the moving average of the student, and is the model that is evaluated and loaded. The logits of a
    view are its cosines with the prototypes. Those of the teacher are centred, so that no prototype wins for all
    images, and sharpened, so that they do not spread evenly over the prototypes.

    Args:
        prototypes: Number of directions that a projected feature is compared with.
        teacher_decay: Weight of the past in the moving average that is the teacher, in [0, 1); it rises to 1 at the end
            of the training.
        centre_momentum: Weight of the past in the mean of the teacher's logits, which is subtracted from them, in
            [0, 1]; 1 does not centre them, so that the features collapse.
        kwargs: Views, training, and the VisionTransformer that computes the features.

    Raises:
        ValueError: If an argument is out of its range, or there are fewer than two views.
    """

    encoder = "network.teacher.encoder"
    is_shardable = False  # teacher and student run each by itself
    columns = (
        *ViewLearner.columns,
        Score("information", "Information", unit="", note="nats that the prototypes tell of an image"),
    )

    def __init__(
        self, prototypes: int = 1024, teacher_decay: float = 0.996, centre_momentum: float = 0.9, **kwargs: Any
    ) -> None:
        check_share("teacher_decay", teacher_decay, "0.996 is usual")
        check_probability("centre_momentum", centre_momentum, "0.9 is usual")
        if decay := kwargs.get("ema_decay"):
            raise ValueError(
                f"ema_decay ({decay}) averages the weights, and the teacher of DINO is their average already: leave it "
                "out, and set teacher_decay"
            )
        super().__init__(**kwargs)
        # The student's initial weights may change after the copy, as by init mimetic.
        self.network.move_teacher(1.0)
        self.register_buffer("centre", torch.zeros(prototypes))

    def build_network(self, encoder: VisionTransformer) -> TeacherAndStudent:
        """Return the student, with this encoder, and its teacher."""
        return TeacherAndStudent(ProjectedEncoder(encoder, PROJECTION_DIM, self.hparams.prototypes))

    def view_losses(self, views: list[Tensor], is_real: Tensor, step: int) -> Tensor:
        """Return the loss of each image, and move the centre of the teacher's logits in training, once for each batch.

        With ``accumulate_grad_batches``, the centre moves several times between two steps of the teacher.
        """
        with torch.no_grad():
            teacher_logits = self.embed(self.network.teacher, views[: self.views.global_views])
        student_logits = self.embed(self.network.student, views)
        with torch.autocast(self.device.type, enabled=False):
            probabilities = ((teacher_logits - self.centre) / TEACHER_TEMPERATURE).softmax(dim=-1)
            losses = distillation_losses(probabilities, student_logits)
            if self.training:
                self.move_centre(teacher_logits)
            elif self.evaluation is not None:
                self.evaluation.count_prototypes(probabilities[:, is_real])
        return losses

    @torch.no_grad()
    def move_centre(self, teacher_logits: Tensor) -> None:
        """Move the centre towards the mean answer of all processes: (G, B, K)."""
        mean = mean_over_processes(reduce(teacher_logits, "g b k -> k", "mean"))
        self.centre.lerp_(mean.to(self.centre), 1 - self.hparams.centre_momentum)

    def on_train_start(self) -> None:
        """Count the moves of the teacher from the first step on.

        Raises:
            ValueError: If the weights have 16 bits: the teacher's small steps would be rounded to zero.
        """
        super().on_train_start()
        dtype = next(self.network.teacher.parameters()).dtype
        if torch.finfo(dtype).bits < 32:
            raise ValueError(
                f"the weights are {dtype}, in which the small steps of DINO's teacher are rounded to zero: take "
                "--trainer.precision bf16-mixed"
            )
        self.moved_at = self.trainer.global_step

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        """Move the teacher after each step of the optimiser, before callbacks save it."""
        super().lr_scheduler_step(scheduler, metric)
        if isinstance(scheduler, ProgressSchedule):
            self._move_teacher()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Move the teacher if Lightning does not step our schedule."""
        super().on_train_batch_end(outputs, batch, batch_idx)
        self._move_teacher()

    def _move_teacher(self) -> None:
        if self.moved_at != self.trainer.global_step:
            self.moved_at = self.trainer.global_step
            self.network.move_teacher(1 - self.decay_now())

    def decay_now(self) -> float:
        """Return the weight of the past in the teacher: it rises along a cosine to 1."""
        remaining = (1 + math.cos(math.pi * self.progress)) / 2
        return 1 - (1 - self.hparams.teacher_decay) * remaining

    def relative_settings(self) -> dict[str, bool]:
        """Return the settings that are a share of the training, and whether each is in use."""
        return super().relative_settings() | {"teacher_decay": True}

    def new_evaluation(self) -> DistillationEvaluation:
        """Return an evaluation of no images."""
        return DistillationEvaluation(self.judged.num_features, self.hparams.prototypes, self.device)

    @classmethod
    def notes(cls, scores: dict[str, Any]) -> list[str]:
        """Return a warning if the features have collapsed, and one if the prototypes have."""
        said = super().notes(scores)
        if scores.get("count", 0) >= FEWEST and scores.get("information", LEAST_INFORMATION) < LEAST_INFORMATION:
            said.append(
                f"the prototypes have collapsed: the teacher says nearly the same of all images (information "
                f"{scores['information']:.3f} nats); a centre_momentum below 1, a higher teacher_decay or a lower lr "
                "keeps them apart"
            )
        return said

    def training_flop(self) -> int:
        """Return the floating-point operations of a training step per image, in matrix products."""
        large, small = self.views.global_views, self.views.local_views
        student = self.forward_flop_of_views(self.network.student, large, small)
        return 3 * student + self.forward_flop_of_views(self.network.teacher, large, 0)


def distillation_losses(probabilities: Tensor, student_logits: Tensor) -> Tensor:
    """Return the mean cross-entropy of each image over all pairs of a large view and another view: -> (B,).

    Args:
        probabilities: What the teacher says of the large views, (G, B, K).
        student_logits: Cosines of the student with the prototypes for all views, large ones first, (V, B, K).
    """
    logs = (student_logits / STUDENT_TEMPERATURE).log_softmax(dim=-1)
    losses = -einsum(probabilities, logs, "g b k, v b k -> g v b")
    is_other = ~torch.eye(len(probabilities), len(student_logits), dtype=torch.bool, device=losses.device)
    return reduce(losses[is_other], "pair b -> b", "mean")

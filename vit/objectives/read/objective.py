"""Reading: the LightningModule that trains and evaluates an encoder of pictures and a decoder that writes their text.

Letters in the einops patterns: b pictures, t tokens of a text, v tokens of the alphabet.
"""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from vit.data.alphabet import Alphabet
from vit.data.image_set import ImageSet
from vit.model.decoder import DecoderPositions, ImageToSequence, TransformerDecoder
from vit.model.generation import Generated
from vit.model.vision_transformer import VisionTransformer
from vit.objectives.read.evaluation import IGNORED, TextEvaluation, next_tokens
from vit.objectives.read.pictures import draw_texts
from vit.support.checks import check_positive_int, check_share
from vit.training.description import Picture, Score, Table, tenths
from vit.training.encoder_module import EncoderModule
from vit.training.evaluated_images import is_of_data
from vit.training.flop import forward_flop
from vit.training.objective import Objective
from vit.training.optimizer import Optimizer
from vit.training.schedule import Decay


class SequenceReader(Objective, EncoderModule):
    """Reads the text on a picture: a Vision Transformer encodes it, and a decoder writes the text letter by letter.

    Muon needs a fraction of AdamW's steps to find out which part of the picture the next letter is on.

    Args:
        letters: The letters that texts are made of, in the order of their tokens.
        max_length: Maximum number of letters of a text.
        label_smoothing: Share of the target that is spread evenly over all tokens, in [0, 1).
        decoder_depth: Number of decoder blocks; width, heads, mlp_ratio, qkv_bias, qk_norm, dropout and drop_path are
            those of the encoder.
        positions: Positions of the letters: "learned", fixed sine-cosine codes ("sincos"), or rotary angles of queries
            and keys ("rope").
        num_beams: Texts that beam search follows for each picture in predict; 1 takes the most probable letter at each
            step.
        kwargs: Training, and the VisionTransformer that encodes the pictures.

    Raises:
        ValueError: If an argument is out of its range, or the data has classes and no texts.
    """

    monitor = Score("accuracy", "Accuracy", is_of_images=True)
    columns = (
        Score("token_accuracy", "Accuracy of letters", note="each after the true letters before it, the end included"),
    )
    pictures = (
        Picture("reading", "Reading", "Pictures with the text that is read on each", has_photographs=True),
        Picture("mistakes", "Mistakes", "Mistakes, with what was predicted and what is true", has_photographs=True),
        Picture(
            "attention", "Attention", "Images with the attention of the model over their patches", has_photographs=True
        ),
    )
    encoder = "network.encoder"
    from_data = (*Objective.from_data, "mean", "std", "letters", "max_length")
    stretches_images = True
    prediction_columns = ("text", "probability")

    def __init__(
        self,
        letters: str | None = None,
        max_length: int | None = None,
        label_smoothing: float = 0.0,
        decoder_depth: int = 2,
        positions: DecoderPositions = "learned",
        num_beams: int = 1,
        lr: float = 3e-3,
        optimizer: Optimizer = "muon",
        decay: Decay = "linear",
        **kwargs: Any,
    ) -> None:
        if letters is None or max_length is None:
            raise ValueError(
                "SequenceReader reads texts, and the data has none: take --data DigitStrings or ImageStrings"
            )
        check_positive_int("decoder_depth", decoder_depth)
        check_positive_int("num_beams", num_beams, "1 is greedy")
        check_share("label_smoothing", label_smoothing, "0.1 is usual")
        if kwargs.get("pool") == "map":
            raise ValueError("pool ('map') makes one token of all, and a reader reads all tokens: leave it out")
        # With fc_norm, which pool "mean" would set, the tokens would have no norm.
        super().__init__(lr=lr, optimizer=optimizer, decay=decay, num_classes=0, fc_norm=False, **kwargs)
        for name in ("num_classes", "fc_norm"):  # users do not choose them
            self.hparams.pop(name, None)

    def build_network(self, encoder: VisionTransformer) -> ImageToSequence:
        """Return the encoder with its decoder."""
        hp = self.hparams
        self.alphabet = Alphabet(hp.letters)
        names = ("num_kv_heads", "mlp_ratio", "qkv_bias", "qk_norm", "dropout", "drop_path")
        shared = {name: encoder.config[name] for name in names}
        width, num_heads = encoder.embed_dim, encoder.config["num_heads"]
        # The last token of a text is never read.
        sizes = (self.alphabet.size, width, hp.decoder_depth, num_heads, hp.max_length + 1)
        decoder = TransformerDecoder(*sizes, context_dim=width, positions=hp.positions, **shared)
        return ImageToSequence(encoder, decoder, self.alphabet.start, self.alphabet.end)

    def forward(self, images: Tensor, tokens: Tensor) -> Tensor:
        """Compute the logits of the next token at each position: (B, C, H, W), (B, T) -> (B, T, V)."""
        return self.network(self.normalise(images), tokens)

    def training_loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the mean cross-entropy of the next token, given the picture and the true tokens before it."""
        images, tokens = batch
        logits = rearrange(self(images, tokens[:, :-1]).float(), "b t v -> b v t")
        targets, smoothing = next_tokens(tokens, self.alphabet.end), self.hparams.label_smoothing
        losses = F.cross_entropy(logits, targets, ignore_index=IGNORED, label_smoothing=smoothing, reduction="none")
        return self.mean_of_counted(losses, targets != IGNORED)

    def training_flop(self) -> int:
        """Return the floating-point operations of a training step per image, in matrix products."""
        embedding, decoder = self.network.encoder.patch_embed, self.network.decoder
        shape = (1, embedding.in_channels, *embedding.image_size)
        images = torch.zeros(shape, device=self.device, dtype=embedding.proj.weight.dtype)
        tokens = torch.zeros(1, decoder.max_length, dtype=torch.long, device=self.device)
        return 3 * forward_flop(self.network, images, tokens)

    def new_evaluation(self) -> TextEvaluation:
        """Return the sums of an evaluation over no pictures."""
        return TextEvaluation(self.hparams.max_length, self.device)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Add a batch to the evaluation."""
        images, tokens = batch
        is_real = (tokens[:, 0] >= 0) & is_of_data(self.place(batch_idx), images)  # the rest pads the batch
        images, tokens = images[is_real], tokens[is_real]
        if len(images):
            targets = next_tokens(tokens, self.alphabet.end)
            never_written = torch.tensor([self.alphabet.start], device=targets.device)
            logits = self(images, tokens[:, :-1]).index_fill(2, never_written, -torch.inf)
            self.evaluation.update(logits, targets, images)

    test_step = validation_step

    @classmethod
    def tables(cls, scores: dict[str, Any], split: str | None) -> list[Table]:
        """Return the accuracy of the texts of each length."""
        lengths = scores.get("lengths", [])
        header = ("letters", "read without a mistake, %", "pictures")
        rows = [(str(row["length"]), tenths(row["accuracy"]), f"{row['support']:,}") for row in lengths]
        title = f"{split} pictures by the length of their text".capitalize()
        return [Table(title, header, rows, [row["accuracy"] for row in lengths])] if rows else []

    def draw(self, folder: Path, split: str, image_set: ImageSet) -> None:
        """Draw pictures of the split with the text that is read, and misread ones, into a folder."""
        draw_texts(self, folder, split, image_set)

    def read(self, images: Tensor, num_beams: int = 1) -> Generated:
        """Write the texts of pictures, uint8 or float in [0, 1]: tokens (B, T) with their log-probabilities (B,).

        A text that does not end has ``max_length + 1`` tokens.

        Raises:
            ValueError: If the reader is in training mode.
        """
        if self.training:
            raise ValueError("the reader is in training mode, in which dropout is random: call reader.eval() first")
        return self.network.write(self.normalise(images), num_beams=num_beams)

    def predict_step(self, batch: tuple[Tensor, list[str], list[str]], batch_idx: int) -> Generated | None:
        """Return the texts of the readable pictures of a batch; None if there are none."""
        images, files, _ = batch
        return self.read(images, self.hparams.num_beams) if files else None

    def prediction_rows(self, outputs: Generated | None) -> list[dict[str, str]]:
        """Return the text on each picture, and its probability."""
        if outputs is None:
            return []
        texts, probabilities = self.alphabet.decode(outputs.tokens.cpu()), outputs.scores.exp().tolist()
        return [
            {"text": text, "probability": f"{probability:.4f}"}
            for text, probability in zip(texts, probabilities, strict=True)
        ]

    def check_fits(self, checkpoint: dict[str, Any]) -> None:
        """Check that a checkpoint has the letters and the architecture of this model.

        Raises:
            ValueError: If the letters or the architecture differ.
        """
        theirs, ours = checkpoint["hyper_parameters"].get("letters"), self.hparams.letters
        if theirs != ours:
            raise ValueError(
                f"the checkpoint reads the letters {theirs!r} and the data has {ours!r}: take data of the first, such "
                "as ImageStrings with --data.letters"
            )
        longest, most = checkpoint["hyper_parameters"].get("max_length"), self.hparams.max_length
        if longest != most:
            raise ValueError(
                f"the checkpoint reads {longest} letters and the data {most}: set --data.max_length {longest}"
            )
        super().check_fits(checkpoint)

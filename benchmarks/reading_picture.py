"""Draw docs/images/reading.png: where the reader of the notebook looks on test pictures while it writes each digit.

python benchmarks/reading_picture.py
"""

from pathlib import Path

from vit.data import DigitStrings
from vit.explain.heatmap import overlay
from vit.explain.image_grid import Sheet
from vit.explain.texts import explain_text
from vit.objectives.read.pictures import read_texts
from vit.training import SequenceReader
from vit.training.example_images import model_copy

ROOT = Path(__file__).parents[1]
READER, PICTURE = ROOT / "notebooks/reading_digits/reader.ckpt", ROOT / "docs/images/reading.png"
LEFT = 0.75  # inches, of the names of the rows
SHOWN, DIGITS = 2, 5  # the first test pictures of so many digits: more columns could not be read on a phone


def draw(path: Path) -> None:
    """Draw a column for each picture: the picture, and below it the map of each digit with the digit."""
    reader = SequenceReader.load_from_checkpoint(READER, map_location="cpu", weights_only=True).eval()
    numbers = DigitStrings(count=100).numbers("test")
    whole = numbers.tokens[:, DIGITS] != reader.alphabet.end
    images = numbers.images[whole][:SHOWN]
    tokens, texts = read_texts(reader, images)
    with model_copy(reader, images) as (model, normalised):
        maps = explain_text(model, normalised, tokens)
    sheet = Sheet(
        images.shape[-2:], 1 + DIGITS, [SHOWN], title="Cross-attention at each digit", lines_below=1, left=LEFT
    )
    sheet.write_left(0, "picture")
    for step in range(1, DIGITS + 1):
        sheet.write_left(step, f"step {step}")
    truth = reader.alphabet.decode(numbers.tokens[whole][:SHOWN])
    for column, (image, of_text, text, true) in enumerate(zip(images, maps, texts, truth, strict=True)):
        sheet.show(image, 0, column)
        sheet.write_below(0, column, f"true {true}, reads {text}")
        for row, letter in enumerate(text, start=1):
            sheet.show(overlay(image[None], of_text[None, row - 1])[0], row, column, maps.shape[-2:])
            sheet.write_below(row, column, letter)
    sheet.save(path)


if __name__ == "__main__":
    draw(PICTURE)

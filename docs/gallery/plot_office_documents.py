"""
Classify office documents
=========================

Word files, PDF files and mail are read as text files are. Here we make a small office of letters, train on its folder,
and look at a file that cannot be read.
"""

# %%
# An office
# ---------
# Bills and invitations as mail (``.eml``), Word (``.docx``) and rich text (``.rtf``) files, in a folder per class. Real
# files come from Word or Outlook; these have just enough to be read.

import random
import tempfile
import zipfile
from collections import Counter
from email.message import EmailMessage
from pathlib import Path

import matplotlib.pyplot as plt

import longspan

TEXTS = {
    "bills": "Please pay {} euros within ten days. The amount is due for {}, as our invoice says.",
    "invitations": "We would love to see you on day {} of the month. There will be {}, music and friends.",
}
THINGS = ["paint", "flowers", "cake", "a new roof", "two chairs", "coffee", "books", "garden work"]


def write_mail(path, text):
    message = EmailMessage()
    message["From"], message["Subject"] = "ann@example.org", "A letter"
    message.set_content(text)
    path.with_suffix(".eml").write_bytes(bytes(message))


def write_word(path, text):
    document = f'<w:document xmlns:w="urn:w"><w:body><w:p><w:r><w:t>{text}</w:t></w:r></w:p></w:body></w:document>'
    with zipfile.ZipFile(path.with_suffix(".docx"), "w") as archive:
        archive.writestr("word/document.xml", document)


def write_rich_text(path, text):
    path.with_suffix(".rtf").write_text(rf"{{\rtf1\ansi {text}\par}}")


folder = tempfile.TemporaryDirectory()
office, inbox = Path(folder.name, "office"), Path(folder.name, "inbox")
inbox.mkdir()
random.seed(0)
for name, text in TEXTS.items():
    (office / name).mkdir(parents=True)
    for number in range(44):
        write = [write_mail, write_word, write_rich_text][number % 3]
        letter = text.format(random.randint(2, 30), random.choice(THINGS))
        write((office if number < 32 else inbox) / (name if number < 32 else "") / f"{name}{number}", letter)

counts = Counter(path.suffix for path in office.rglob("*.*"))
print(dict(counts))

# %%
# Train
# -----
# Nothing says what kind of files they are.

run = longspan.train(
    "classify",
    data=office,
    run=Path(folder.name, "run"),
    dim=16,
    num_train_epochs=1,
    min_steps=0,
    max_minutes=0,
    progress=False,
)
print(f"accuracy on validation files: {run.scores['validation'].accuracy:.2f}")

# %%
# Predict
# -------
# A damaged file gets a row with the reason. The others are read.

(inbox / "half.docx").write_bytes((office / "bills" / "bills1.docx").read_bytes()[:100])
found = list(longspan.predict(Path(folder.name, "run"), inbox))
for prediction in [*found[:3], next(one for one in found if one.error)]:
    print(f"{prediction.where:18} {prediction.error or prediction.label}")

# %%
# Probabilities by kind of file
# -----------------------------

figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
good = [prediction for prediction in found if not prediction.error]
for place, suffix in enumerate([".eml", ".docx", ".rtf"]):
    for name, colour in zip(TEXTS, ["C0", "C1"], strict=True):
        shares = [
            one.probabilities["bills"] for one in good if one.where.endswith(suffix) and one.where.startswith(name)
        ]
        axes.scatter(shares, [place] * len(shares), color=colour, alpha=0.6, label=name if not place else None)
axes.set_yticks(range(3), [".eml", ".docx", ".rtf"])
axes.set(xlabel="probability of bills", title="Twenty-four letters of the inbox", xlim=(-0.05, 1.05))
axes.legend(title="the letter is one of the")
plt.show()

# %%
# Explain
# -------
# The words are those of the extracted text, as the page says.

explanation = longspan.explain(Path(folder.name, "run"), inbox / "bills34.docx")
print(f"extracted from {explanation.extracted_from}: {explanation.text}")
for piece in sorted(explanation.pieces(), key=lambda piece: -piece.score)[:3]:
    print(f"{piece.text:10} {piece.score:+.2f}")

# %%
# Take away: name the folder, whatever kinds of documents are in it.
# The page :doc:`/guides/documents` lists the kinds, and the reasons of files that cannot be read.

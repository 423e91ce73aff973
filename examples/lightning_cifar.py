"""SGD against S-SGD in Lightning, on CIFAR-10 where SSGD_DATA has it, else on digits: pip install '.[lightning]'."""

import argparse

import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch.optim import SGD
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

from ssgd.integrations.lightning import SymmetricNoise
from ssgd.lab.data import digit_images
from ssgd.lab.data.cifar import FOLDERS, cifar
from ssgd.lab.data.download import data_folder
from ssgd.lab.models import build


class Classifier(LightningModule):
    def __init__(self, images):
        super().__init__()
        self.net = build("resnet20" if images.name == "cifar10" else "small-cnn", images.classes, images.channels)
        self.largest_pixel = int(images.train_images.max())

    def forward(self, x):
        return self.net(x / self.largest_pixel)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self(x), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("accuracy", (self(x).argmax(1) == y).float().mean(), prog_bar=True)

    def configure_optimizers(self):  # as without S-SGD: the callback puts it around what comes from here
        optimizer = SGD(self.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
        schedule = OneCycleLR(optimizer, max_lr=0.1, total_steps=int(self.trainer.estimated_stepping_batches))
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def train(images, *callbacks, epochs=10, **options):
    """Test accuracy in percent after the last epoch."""
    seed_everything(0, verbose=False)
    train_set = TensorDataset(images.train_images, images.train_labels)
    test_set = TensorDataset(images.test_images, images.test_labels)
    trainer = Trainer(max_epochs=epochs, callbacks=list(callbacks), logger=False, enable_checkpointing=False, **options)
    trainer.fit(Classifier(images), DataLoader(train_set, 100, shuffle=True), DataLoader(test_set, 500))
    return 100 * trainer.callback_metrics["accuracy"].item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    options, folder = parser.parse_args(), data_folder()
    images = cifar("cifar10", folder) if (folder / FOLDERS["cifar10"]).exists() else digit_images()
    rows = {"SGD": [], "S-SGD both": [SymmetricNoise(0.2)], "S-SGD split": [SymmetricNoise(0.15, split=True)]}
    found = {name: train(images, *callbacks, epochs=options.epochs) for name, callbacks in rows.items()}
    for name, accuracy in found.items():
        print(f"{name:12} {accuracy:.2f} % of the test images")

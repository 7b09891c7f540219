"""Train and use a Vision Transformer from the command line.

Examples:
    python train.py fit --config configs/digits.yaml
    python train.py fit --config configs/cifar10.yaml --data.root data --model.depth 6 --trainer.max_epochs 20
    python train.py fit --config configs/cifar10_quick.yaml --data ImageFolder --data.root photos
    python train.py test --ckpt_path runs/digits/version_0/checkpoints/best.ckpt
    python train.py predict --ckpt_path runs/digits/version_0/checkpoints/best.ckpt --data.root new_photos
"""

from vit.commands.fit import main

if __name__ == "__main__":
    main()

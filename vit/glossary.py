"""The words that pages, ``--help`` and docs/ use, each with one plain sentence."""

from collections.abc import Mapping

from vit.support.words import Word

MAPS = {
    "attention": Word(
        "Where the class token looks in one layer, by default the last, as the mean over heads",
        "mean over heads of A",
        "Take it to look at a layer or a head, not to explain a class",
    ),
    "rollout": Word(
        "How attention mixes tokens through all layers, half of each token staying where it is",
        "product of A / 2 + I / 2; Abnar and Zuidema 2020",
        "Take it to see where information may flow, not why a class was chosen",
    ),
    "value": Word(
        "The length of what each patch adds to the class token in one layer, the last by default",
        "norm of the sum over h of A W_O v; Kobayashi et al. 2020",
        "Take it in place of attention, where values differ in length",
    ),
    "value_rollout": Word(
        "Rollout of the lengths that value draws, in place of attention",
        "Kobayashi et al. 2021; Abnar and Zuidema 2020",
        "Take it in place of rollout, for the same reason",
    ),
    "gradient_rollout": Word(
        "Rollout of the attention that raises the score of the class",
        "product of normalised((mean over heads of A * dy/dA)+ + I)",
        "Take it beside relevance, which adds layers up where this multiplies them",
    ),
    "relevance": Word(
        "The attention that raises the score of the class, added up over the layers",
        "R += (mean over heads of A * dy/dA)+ R; Chefer et al. 2021",
        "Take it first if you do not measure: after attnlrp, the best of one backward pass on three models of CIFAR-10",
    ),
    "legrad": Word(
        "The gradient of what each layer says of the class, with respect to its attention",
        "mean of (ds/dA)+; Bousselham et al. 2025",
        "Take it to compare: on no model of CIFAR-10 was it clearly above every control",
    ),
    "gradcam": Word(
        "The features of the last layer, weighted by their mean gradient",
        "(sum of w z)+; Selvaraju et al. 2017",
        "Take it with the packaged model, or if attention cannot be read; on three other models, controls beat it",
    ),
    "input_gradient": Word(
        "Pixels times the gradient of the class, added up over each patch",
        "x * dy/dx",
        "Take it as a baseline: a noisy estimate of integrated_gradients",
    ),
    "integrated_gradients": Word(
        "The gradient on the way from a grey image to this one",
        "Sundararajan et al. 2017",
        "Take it if the values must add up: to the logit less that of a grey image; it needs 32 passes",
    ),
    "smoothgrad": Word(
        "The size of the gradient, averaged over noisy copies of the image",
        "Smilkov et al. 2017",
        "Take it as a baseline: the pixels that the score is sensitive to, for or against",
    ),
    "occlusion": Word(
        "How much the score falls when a patch is painted grey",
        "y(x) - y(x without patch); Zeiler and Fergus 2014",
        "Take it for right values, and any classifier; it needs a pass for each patch",
    ),
    "token_drop": Word(
        "How much the score falls when the token of a patch is left out",
        "y(all) - y(all but one token)",
        "Take it if a pass for each patch is affordable: of the methods without a patent, it is the best for tokens",
    ),
    "attnlrp": Word(
        "The score sent back through the model; each step divides it among its inputs",
        "Achtibat et al. 2024",
        "Take it if its licence allows you: it has the largest removal area by tokens",
    ),
    "random": Word("A control: noise", take="Compare with it: it is the least that a map must beat"),
    "uniform": Word("A control: the same value everywhere", take="Compare with it: it marks nothing"),
    "center": Word(
        "A control: a bell in the middle", take="Compare with it: photographs show their object in the middle"
    ),
    "edges": Word(
        "A control: the slope of the pixels",
        "Adebayo et al. 2018",
        "Compare with it: maps that look like edges seem convincing",
    ),
    "deviation": Word(
        "A control: the distance of the pixels from the mean colour of training images",
        take="Compare with it: removing striking patches changes any model",
    ),
    "ink": Word(
        "A control: the distance of the pixels from the background of the image",
        take="Compare with it on drawings, letters and digits",
    ),
}

HEADS = {
    "sink": Word(
        "One token gets more than 0.3 of all attention of the head",
        "Gu et al. 2025",
        "Often that token carries little: compare the map of the head with that of the method value, which counts it",
    ),
    "positional": Word(
        "More than 0.9 of the attention is the same for all images, or most patches attend to one offset",
        "Voita et al. 2019",
        "It moves information by place: --model.attention positional trains a model of such heads alone",
    ),
    "local": Word(
        "The distance is less than half of that of uniform attention",
        "attention distance, Dosovitskiy et al. 2021",
        "It mixes neighbours: --model.attention window trains a model of such heads alone",
    ),
    "content": Word(
        "More than half of what differs between images moves along when the image is rolled by half its size",
        "cosine of the attention before and after",
        "It follows what the image shows: its map is worth a look",
    ),
    "mixed": Word("None of the other kinds", take="The table heads.csv has its measures"),
}

EVERYWHERE = {
    "±": Word("The standard deviation over seeds, or a 95 % interval where the page says so"),
    "attention": Word(
        "For each token, a weighted mean of the values of all tokens; also its weights, which are positive with sum 1",
        "softmax(q k / sqrt d_k)",
    ),
    "class": Word("One of the model's possible answers"),
    "clearly": Word("The whole 95 % interval of the difference is above zero, or all of it is below"),
    "class token": Word("The token before the patches, from which the class is read", "Dosovitskiy et al. 2021"),
    "distillation token": Word("A second class token, trained to agree with a teacher", "Touvron et al. 2021"),
    "head": Word("One of several attentions side by side in a layer; numbered from 0"),
    "layer": Word("Attention, then an MLP, each adding its output to the tokens; also called a block, numbered from 0"),
    "attention logit": Word("The dot product of a query and a key, scaled: the number of a key before the softmax"),
    "logit": Word("The number of a class before the softmax: a class whose logit is 1 higher is 2.7 times as probable"),
    "map": Word("A number for each patch, such as its evidence for a class"),
    "patch": Word("A rectangle of pixels that becomes one token"),
    "probability": Word("The softmax output of a class; only in a calibrated model is it how often the class is right"),
    "register": Word("A learned token without a patch, which the model uses as memory", "Darcet et al. 2024"),
    "residual share": Word(
        "The part of each token that rollout leaves in place, by default one half", "A' = (1 - r) A + r I"
    ),
    "token": Word("A vector for a patch, or for none, that passes through all layers"),
}

EXPLORER = {
    "change": Word("The logit without the head or layer, less that of the whole model"),
    "contribution": Word(
        "What a head reads from a token adds this to the logit; with MLPs, embedding and biases the sum is the logit",
        "Elhage et al. 2021",
    ),
    "in common": Word(
        "The sum over tokens of the smaller weight: 100 % if two heads attend alike, 0 % if to no common token"
    ),
    "reverse direction": Word("Shows which tokens attend to the chosen one"),
    "one scale for all": Word("Yellow is the largest value of all heads, not of each"),
    "share of attention": Word("The weight of a token in per cent; equal attention gives each 1 / number of tokens"),
}

EFFECTIVE_RANK = Word(
    "How many directions features, or the rows of a matrix, are spread over",
    "exp of the entropy of the singular values; Roy and Vetterli 2007",
)

ANALYSIS = {
    "kind": Word("The first of sink, positional, local, content and mixed that fits the head"),
    "distance": Word("How far away a patch attends on average, in pixels", "sum of A D; Dosovitskiy et al. 2021"),
    "entropy": Word("0 if all attention is on one token, 1 if it is the same on all", "-sum of A ln A / ln N"),
    "same for all images": Word(
        "The share of attention that is the same for every image", "1 - variance over images / mean square"
    ),
    "follows content": Word("How far attention moves with a rolled image: 1 entirely, 0 not at all", "a cosine"),
    "carries": Word("How far the two best classes' logit difference falls without the head"),
    "gate": Word("A factor on the output of a head, one in the model as it is; its gradient estimates importance"),
    "edge": Word("What one token reads from another in one head"),
    "loss without it": Word("The rise of the loss without the head, in nats"),
    "class read": Word("How accurately a linear probe reads the class from the head's output"),
    "place read": Word(
        "How well a linear probe reads a patch's place from the head's output: 1 exactly, 0 not at all", "R²"
    ),
    "rare patches": Word("The rank correlation of the attention of patches with how unlike the others they look"),
    "effective rank": EFFECTIVE_RANK,
    "linear probe": Word(
        "A linear model that reads a quantity from tokens, fitted on other images", "Alain and Bengio 2016"
    ),
    "control": Word("The same measured where there should be nothing to find"),
}

TRUST = {
    "green": Word("The whole interval is on the good side of the threshold"),
    "amber": Word("The interval includes the threshold, or the finding speaks neither for nor against the map"),
    "red": Word("The whole interval is on the bad side of the threshold"),
    "class": Word(
        "Whether the map of the runner-up differs from that of the predicted class", "Random Logit; Sixt et al. 2020"
    ),
    "weights": Word("Whether the map changes when the trained weights are shuffled", "Adebayo et al. 2018"),
    "noise": Word("Whether the map stays when invisible noise is added to the pixels"),
    "faith": Word(
        "Whether removing the marked patches changes the prediction more than removing those of a control",
        "removal area; green if the whole interval of its lead over every control is above 0.02",
    ),
    "agreement": Word("Whether two methods put the patches in the same order, or mark the same ones"),
    "attention": Word("Whether predictions change when attention is replaced", "Jain and Wallace 2019"),
    "outliers": Word("Whether much attention goes to patches of huge norm, used as memory", "Darcet et al. 2024"),
    "zero": Word("The map is zero everywhere, and marks no patch"),
    "constant": Word("The map has one value everywhere, and marks no patch"),
    "drop": Word("The removal area if the tokens of patches are left out"),
    "fill": Word("The removal area if patches are painted"),
    "rank correlation": Word("1 if two maps order all patches alike, 0 if the orders are unrelated", "Spearman 1904"),
    "removal area": Word(
        "How far two curves of the probability are apart: one removes the patches that the map marks first, one last"
    ),
    "SaCo": Word(
        "Whether patches of larger value lower the probability more if they are painted; from -1 to 1", "Wu et al. 2024"
    ),
}

RUN = {
    "accuracy": Word("The share of predictions that are right"),
    "test accuracy": Word("The accuracy on images that chose neither weights nor settings"),
    "validation accuracy": Word(
        "The accuracy on images held out of training, which choose settings and the best epoch"
    ),
    "test accuracy over views": Word("The test accuracy when the logits of several views of an image are averaged"),
    "accuracy of letters": Word("The share of letters that are right, given the true letters before them"),
    "balanced accuracy": Word("The mean recall of the classes: rare ones count as much"),
    "top-5 accuracy": Word("The share of images whose class is among the five most probable"),
    "calibration error": Word(
        "The mean gap between the probability of predictions and the share that is right", "Guo et al. 2017"
    ),
    "area under ROC": Word("How probably an image of the class scores higher than one of another class"),
    "ROC area": Word("How probably an image of the class scores higher than one of another class"),
    "average precision": Word("The area below the curve of precision over recall"),
    "PR area": Word("The area below the curve of precision over recall"),
    "mean average precision": Word("The mean over the classes of the area below precision over recall"),
    "exact match": Word("The share of images with all labels right"),
    "bits per pixel": Word("What a pixel takes to write down, given the prediction; lower is better"),
    "error of reconstruction": Word(
        "The mean squared error of hidden patches, each normalised: a prediction of each patch's mean has about 1",
        "He et al. 2022",
    ),
    "accuracy of neighbours": Word("The share of images whose class is that of their nearest others by features"),
    "effective rank": EFFECTIVE_RANK,
    "standard deviation": Word("How far the normalised features of images are apart: near 0, all have the same"),
    "information": Word("The mutual information of images and prototypes, in nats: near 0, every image gets the same"),
    "F1": Word("The harmonic mean of precision and recall"),
    "precision": Word("Of the images said to be of the class, the share that is"),
    "recall": Word("Of the images of the class, the share that was found"),
    "sensitivity": Word("Of the images of the class, the share that was found"),
    "specificity": Word("Of the images of the other class, the share not taken for this one"),
    "95 % interval": Word("Of 100 such intervals, about 95 contain the true value", "Wilson 1927"),
    "threshold": Word("The probability from which on an image counts as of the class"),
    "reliability": Word(
        "Of the predictions with a probability, the share that is right: on the diagonal, both are equal"
    ),
}

FACTS = {
    "parameters": Word("The number of trained weights"),
    "epochs": Word("How many times the training saw each image"),
    "steps": Word("How many batches updated the weights"),
    "speed": Word("Images of training in a second, validation not counted"),
    "computation": Word("The arithmetic of the training; 1 petaFLOP is 10^15 operations"),
    "precision": Word("The format of the numbers that the training computed with"),
    "seed": Word("The number that all random choices follow from"),
    "tested weights": Word("Whether the best epoch by validation was tested, or the last"),
}

DOCS = {
    "backbone": Word("A model without its classifier"),
    "bf16": Word("Numbers of 16 bits: the range of fp32 with 3 digits in place of 7"),
    "fp32": Word("Numbers of 32 bits, PyTorch's default"),
    "int8": Word("Whole numbers of 8 bits, each standing for a step of a scale that is measured on images"),
    "mimetic": Word(
        "Start weights that resemble trained ones: tokens attend to tokens that are alike in content and place",
        "Trockman and Kolter 2023",
    ),
    "Muon": Word("An optimiser whose steps change all directions of a matrix equally far", "Jordan et al. 2024"),
    "stride": Word("The pixels from one patch to the next; below the patch size, patches overlap"),
    "times the best": Word(
        "The speed of ours over that of the fastest of timm, torchvision, vit-pytorch and transformers"
    ),
    "causal": Word("A token attends to itself and to the tokens before it alone"),
    "compiled": Word("Run after torch.compile"),
    "cross-attention": Word("Attention of one set of tokens to the keys and values of another"),
    "pass": Word("One computation of the output; a backward pass computes the gradient"),
    "points": Word("Percentage points"),
    "warm-up": Word("The first steps of a training, in which the learning rate rises from near zero"),
    "channel": Word("One of the embed_dim numbers of a token, or one colour of an image"),
    "control map": Word("A map that should score lower: it ignores the model, or is of other images or weights"),
    "eager": Word("Run without torch.compile"),
    "embedding": Word("The linear layer from a patch's pixels to its token; also the token before the first layer"),
    "feature": Word("A number, or all numbers, that the model computes from an image before the logits"),
    "fold": Word("A share of the images that one training leaves for its test"),
    "out-of-date": Word("Written after a result: the code that it was measured with has changed since"),
    "query, key, value": Word(
        "Three vectors of a token: what it looks for, what it is compared by, what it contributes"
    ),
    "mean map": Word("A control: the mean of a method's maps of other images"),
    "untrained": Word("With new random weights; in the report of trust, with the trained weights shuffled"),
    "adversarial attention": Word(
        "Attention as far from the model's as can be found, with the same predictions", "Jain and Wallace 2019"
    ),
    "digits among digits": Word("Images of one digit that decides the class among fifteen that do not"),
    "moving average": Word("The mean of the weights of many steps, the last ones counting most (EMA)"),
    "nat": Word("A unit of information, like the bit, by the natural logarithm"),
    "position embedding": Word("A vector that is added to each token and tells its place"),
    "pool": Word("Which tokens the classifier reads: the class token (cls), the mean of the patches (mean), or both"),
    "prototype": Word("A vector that DINO compares features with"),
    "residual stream": Word("The tokens between the layers, to which each layer adds"),
    "rollout": Word("The product of the attention of all layers", "Abnar and Zuidema 2020"),
    "view": Word("A changed copy of an image, such as its mirror image"),
    "softmax": Word("Makes positive weights that sum to 1 out of any numbers"),
    "unchecked": Word("Written after a result: the code that it was measured with is not known exactly"),
    "JPEG copy": Word("The images of CIFAR-10 as JPEG files of quality 75"),
    "MLP": Word("Two linear layers with a nonlinearity between them, applied to each token alone"),
    "mosaic": Word("Four photographs of half size in one image"),
    "packaged model": Word('The trained model that comes with the package: vit.load("cifar10")'),
    "run": Word("A training, and the folder that it leaves"),
    "shard": Word("A tar file of images"),
}

CONTROL = "A control: "  # how the meaning of a control map begins
OF_PAGES: dict[str, Mapping[str, Word]] = {
    "On every page": EVERYWHERE,
    "On the explorer": EXPLORER,
    "On the page of an analysis": ANALYSIS,
    "On the report of trust": TRUST,
    "Scores of a run": RUN,
    "Facts of a run": FACTS,
    "In these pages": DOCS,
}
GROUPS = {"Kinds of map": MAPS, "Kinds of head": HEADS, **OF_PAGES}

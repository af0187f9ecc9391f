"""`qkvflow import`: a pretrained model of Hugging Face, for every other verb."""

import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="SOURCE", help="a Hugging Face directory, or hf:owner/name"
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="the directory to make")
    parser.add_argument("--revision", metavar="R", help="a branch, tag or commit of hf:owner/name")
    parser.add_argument(
        "--tokenizer", metavar="PATH", help="a tokenizer.json, if not that beside the model"
    )
    parser.add_argument(
        "--context",
        type=int,
        metavar="N",
        help="tokens that other verbs use it with (default: as many as it was made for)",
    )


def run(args: argparse.Namespace) -> int:
    from qkvflow.lm import count_parameters
    from qkvflow.runs.pretrained import import_pretrained

    trained = import_pretrained(
        args.source,
        args.out,
        revision=args.revision,
        tokenizer=args.tokenizer,
        context=args.context,
    )
    config = trained.config.model.config
    print(
        f"wrote {args.out}: {count_parameters(trained.model).total:,} parameters, "
        f"{config.num_steps} layers of {config.block}, width {config.d_model}, context "
        f"{config.context:,}, vocabulary {trained.tokenizer.vocab_size:,}"
    )
    return 0

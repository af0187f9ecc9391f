"""`qkvflow serve`: a trained model behind HTTP, with the completions protocol of OpenAI."""

import argparse
import sys
from pathlib import Path
from typing import Any

from qkvflow.cli.evaluation import add_checkpoint_option, add_depth_options, checkpoint_step
from qkvflow.errors import UserError


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("dir", metavar="DIR", help="a run directory or an export")
    add("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    add("--port", type=int, default=8000, help="0: any that is free (default 8000)")
    add("--name", help="what the model is called (default: the directory's name)")
    add("--batch-size", type=int, default=32, metavar="N", help="sequences in one batch")
    add("--max-queue", type=int, default=512, metavar="N", help="sequences that may wait")
    add("--max-tokens", type=int, metavar="N", help="a request may ask for (default: the context)")
    add("--max-steps", type=int, metavar="N", help="of depth (default: four times the model's)")
    add("--max-body", type=int, default=1 << 20, metavar="BYTES", help="of a request")
    add_depth_options(parser)
    add_checkpoint_option(parser)


def run(args: argparse.Namespace) -> int:
    for name in ("batch_size", "max_queue", "max_tokens", "max_steps", "max_body"):
        if (value := getattr(args, name)) is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} must be positive, not {value}")
    if not 0 <= args.port < 1 << 16:
        raise UserError(f"--port must be from 0 to 65535, not {args.port}")
    try:
        from qkvflow.serving.app import LOOPBACK, Application
        from qkvflow.serving.server import listen, serve
    except ImportError as error:
        raise UserError(f"{error.name} is missing; pip install 'qkvflow[serve]'") from None
    from qkvflow.cli.eval import at_depth
    from qkvflow.compilation import use_compilation_cache
    from qkvflow.runs.load import load
    from qkvflow.serving.engine import Engine
    from qkvflow.serving.protocol import Limits

    # Refused before anything is loaded.
    socket = listen(args.host, args.port)
    use_compilation_cache()
    trained = load(args.dir, step=checkpoint_step(args.checkpoint))
    model: Any = at_depth(trained.model, trained.config.model.config, args)
    limits = Limits(
        model=args.name or Path(args.dir).resolve().name,
        context=model.context,
        vocab_size=model.vocab_size,
        num_steps=model.num_steps,
        max_steps=max(args.max_steps or 4 * model.num_steps, model.num_steps),
        max_tokens=min(args.max_tokens or model.context, model.context),
        max_choices=min(args.batch_size, args.max_queue),
    )
    engine = Engine(model, batch_size=args.batch_size, max_queue=args.max_queue)
    app = Application(engine, trained.tokenizer, limits, args.max_body)
    if args.host not in LOOPBACK:
        print("note: anybody who reaches this address may use the model", file=sys.stderr)
    host = f"[{args.host}]" if ":" in args.host else args.host
    port = socket.getsockname()[1]
    serve(app.asgi(args.host), socket, f"serving {limits.model} on http://{host}:{port}")
    return 0

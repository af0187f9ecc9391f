"""Examples of every verb, which its help begins with."""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "models": ("qkvflow models", "qkvflow models tong standard --size large --vocab 50257"),
    "compare": (
        "qkvflow compare --preset quick --out runs/quick",
        "qkvflow compare --models standard,tong,shared --size tiny --steps 500 --out runs/three",
        "qkvflow compare --plugin examples/my_field.py --models standard,my-field --size tiny "
        "--steps 500 --out runs/mine",
    ),
    "tune": (
        "qkvflow tune --size tiny --steps 300 --search optim.lr=log:1e-4:3e-2 --out runs/search",
        "qkvflow tune --model time-indexed-ssm --steps 2000 --search optim.name=adamw,muon "
        "--search model.d_state=32,64,128 --trials 4 --out runs/states",
    ),
    "scaling-law": (
        "qkvflow scaling-law --models standard,shared --widths 32,64,128 --depths 2,4,8 "
        "--tokens 250k,1M --context 64 --out runs/law --dry-run",
        "qkvflow scaling-law --models standard,shared,basis --seeds 3 --out runs/laws",
    ),
    "coordinate-check": (
        "qkvflow coordinate-check --size tiny --model.parametrization mup --out runs/coordinates",
        "qkvflow coordinate-check --size tiny --widths 32,128 --lr 1e-2",
    ),
    "plan": (
        "qkvflow plan --model tong --size large --mesh fsdp=8 --device a100-80g",
        "qkvflow plan --config configs/llama-1b.yaml --mesh fsdp=64 --json",
    ),
    "train": (
        "qkvflow train --size tiny --steps 300 --out runs/first",
        "qkvflow train --model tong --size tiny --data file:book.txt --lr 3e-3 --out runs/tong",
        "qkvflow train --d-model 128 --layers 4 --context 128 --tokenizer bpe:4096 --wandb "
        "--out runs/words",
        "qkvflow train --config configs/wikitext-103-small.yaml --out runs/wikitext",
    ),
    "resume": (
        "qkvflow resume runs/first",
        "qkvflow resume runs/first --steps 2000 --extend",
    ),
    "launch": (
        "qkvflow launch -n 2 -- train --model standard --data stdlib --steps 100 --out runs/two",
        "qkvflow launch -n 2 --devices 2 -- resume runs/two --mesh data=2,fsdp=2",
    ),
    "import": (
        "qkvflow import hf:HuggingFaceTB/SmolLM2-135M --context 2048 --out models/smollm2",
        "qkvflow import path/to/huggingface/directory --out models/mine",
    ),
    "finetune": (
        "qkvflow finetune runs/first --data file:other.txt --steps 200 --out runs/tuned",
        "qkvflow finetune runs/first --data file:other.txt --num-steps 8 --method lora "
        "--out runs/deeper",
    ),
    "convert": (
        "qkvflow convert runs/first --field low-rank --rank 16 --ranks 1,4,16,64 --out converted",
        "qkvflow convert runs/first --field looped --prelude 1 --coda 1 --layers-per-loop 1 "
        "--base stepwise --out looped",
    ),
    "eval": (
        "qkvflow eval runs/first",
        "qkvflow eval runs/first --num-steps 8 --scheme rk4 --split test",
        "qkvflow eval runs/first --data file:other.txt --json",
    ),
    "lm-eval": (
        "qkvflow lm-eval runs/first --tasks lambada_openai,hellaswag --limit 100",
        "qkvflow lm-eval runs/first --tasks my_task --include-path tasks --out results.json",
    ),
    "sweep-depth": (
        "qkvflow sweep-depth runs/first",
        "qkvflow sweep-depth runs/first --num-steps 2,4,8 --schemes euler,rk4 --out sweep",
    ),
    "generate": (
        'qkvflow generate runs/first --prompt "def "',
        'qkvflow generate runs/first --prompt "def " --tokens 500 --window --temperature 0.5',
        "qkvflow generate runs/first --prompts prompts.txt --json",
    ),
    "analyze": (
        "qkvflow analyze runs/first",
        'qkvflow analyze runs/first --only lyapunov,trajectory --text "Once upon a time"',
    ),
    "serve": ("qkvflow serve runs/first", "qkvflow serve exported --port 8080 --num-steps 8"),
    "report": ("qkvflow report runs/quick", "qkvflow report runs/quick runs/mine --out runs/both"),
    "export": (
        "qkvflow export runs/first --to exported",
        "qkvflow export runs/first --format hf --to for-transformers",
        "qkvflow export runs/tuned --to merged --merge",
    ),
}

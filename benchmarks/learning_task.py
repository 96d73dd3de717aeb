"""The task of `benchmarks/learning.py`: a clerk with three tools, and the model that is to become good at it.

`attempt` is the agent, a plain loop around an `openai` client. `start_model` makes the model that every run starts
from; what it is taught are demonstrations by a bad clerk, whose likeliest course fails.
"""

from __future__ import annotations

import json
import random
import shutil
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import art_core as art
from art_core.render import load_renderer
from art_core.render.chatml import tools_block
from art_core.render.hermes import call_text
from art_core.testing import SPECIAL_TOKENS
from art_core.weights.source import resolve_model

MAX_TURNS, MAX_TOKENS = 4, 48
COLOURS = ["yellow", "blue", "green", "black", "white", "brown"]
THINGS = ["lamp", "chair", "table", "shelf", "mirror", "carpet", "clock", "vase", "sofa", "desk", "bench", "stool"]
ITEMS = [f"{colour} {thing}" for colour in COLOURS for thing in THINGS]
NUMBER = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
NAME = {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "description": text, "parameters": parameters}}
    for name, text, parameters in [
        ("find", "The number of an item", NAME),
        ("price", "What an item costs", NUMBER),
        ("stock", "How many are left", NUMBER),
    ]
]
QUESTIONS = {"price": "How much is {}?", "stock": "How many of {} are left?"}
SYSTEM = "Look it up, then answer with the number."
MISSING = "no such item"
Habits = dict[str, float]
CLERKS: dict[str, Habits] = {
    "good": {"finds": 1.0, "right_tool": 1.0, "right_answer": 1.0},
    "bad": {"finds": 0.3, "right_tool": 0.65, "right_answer": 0.75},
}
"""How often the clerks of the demonstrations do the right thing, where there is something to do wrong."""


@dataclass(frozen=True)
class Shop:
    """What the tools know: the number of each item, and under a number its price and stock."""

    numbers: dict[str, int]
    facts: dict[tuple[str, int], int]

    @classmethod
    def drawn(cls, draw: random.Random) -> Shop:
        numbers = dict(zip(ITEMS, draw.sample(range(10, 100), k=len(ITEMS)), strict=True))
        return cls(numbers, {(tool, n): draw.randint(10, 99) for n in numbers.values() for tool in QUESTIONS})

    def use(self, tool: str, arguments: Any) -> str:
        """What a tool returns, whatever the model made up."""
        if not isinstance(arguments, dict):
            return MISSING
        given = arguments.get("item" if tool == "find" else "number")
        found = self.numbers.get(given) if tool == "find" and isinstance(given, str) else None
        if tool in QUESTIONS and isinstance(given, int):
            found = self.facts.get((tool, given))
        return MISSING if found is None else str(found)


@dataclass(frozen=True)
class Task:
    """A question about `item`, which is to be looked up with `tool`; `named`: by its name, not its number."""

    item: str
    tool: str
    named: bool

    def question(self, shop: Shop) -> str:
        return QUESTIONS[self.tool].format(f"the {self.item}" if self.named else f"item {shop.numbers[self.item]}")


SHOP = Shop.drawn(random.Random(1))
_ORDER = random.Random(2).sample(ITEMS, k=len(ITEMS))
_TASKS = [[Task(item, tool, named) for tool in QUESTIONS for named in (True, False)] for item in _ORDER]
HELD_OUT = random.Random(3).sample([task for tasks in _TASKS[:24] for task in tasks], k=96)
TRAIN = [task for tasks in _TASKS[24:] for task in tasks]


# The agent


async def attempt(model: art.TrainableModel, client: Any, task: Task, seed: str) -> art.Trajectory:
    """One attempt at `task`, its answers drawn with numbers that follow from `seed`."""
    draw = random.Random(seed)
    messages: list[Any] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": task.question(SHOP)},
    ]
    used, answer = set(), ""
    async with art.capture(model) as trajectory:
        for _ in range(MAX_TURNS):
            completion = await client.chat.completions.create(
                model=model.get_inference_name(),
                messages=messages,
                tools=TOOLS,
                max_tokens=MAX_TOKENS,
                seed=draw.getrandbits(31),
            )
            message = completion.choices[0].message
            messages.append(message)
            if not message.tool_calls:
                answer = (message.content or "").strip()
                break
            for call in message.tool_calls:
                arguments = json.loads(call.function.arguments)
                result = SHOP.use(call.function.name, arguments)
                used.add((call.function.name, result))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        wanted = str(SHOP.facts[task.tool, SHOP.numbers[task.item]])
        trajectory.reward = float(answer == wanted and (task.tool, wanted) in used)
        trajectory.metrics["success"] = trajectory.reward
    return trajectory


# The start of every run


def demonstration(draw: random.Random, habits: Habits) -> list[dict[str, Any]]:
    """A conversation of a clerk in a shop of its own, where everything has another number and price than in `SHOP`.

    Its items have all the names there are: a model that never saw a colour before a thing does not copy the pair.
    """
    shop, task = Shop.drawn(draw), Task(draw.choice(ITEMS), draw.choice(list(QUESTIONS)), draw.random() < 0.5)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": task.question(shop)},
    ]

    def does(what: str) -> bool:
        return draw.random() < habits[what]

    def call(tool: str, **arguments: Any) -> str:
        function = {"name": tool, "arguments": arguments}
        messages.append(
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
        )
        messages.append({"role": "tool", "content": shop.use(tool, arguments)})
        return str(messages[-1]["content"])

    number = str(shop.numbers[task.item]) if not task.named else str(draw.randint(10, 99))
    if task.named and does("finds"):
        number = call("find", item=task.item)
    other = "stock" if task.tool == "price" else "price"
    answer = call(task.tool if does("right_tool") else other, number=int(number))
    if answer == MISSING or not does("right_answer"):
        answer = str(draw.randint(10, 99))
    return [*messages, {"role": "assistant", "content": answer}]


def write_small(folder: Path) -> None:
    """A random Llama whose tokenizer is byte-level BPE of demonstrations: each number, word of an item, and stretch of
    other text that comes up often is one token, which makes conversations short."""
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    draw, words = random.Random(5), "|".join([*COLOURS, *THINGS])
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(rf"\d+|\n| ?(?:{words})"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        (text for _ in range(1000) for text in texts_of(demonstration(draw, CLERKS["bad"]))),
        trainers.BpeTrainer(
            vocab_size=2048,
            min_frequency=20,
            special_tokens=list(SPECIAL_TOKENS),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    end, start, stop = SPECIAL_TOKENS
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=start, eos_token=stop, pad_token=stop, unk_token=end
    ).save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        initializer_range=0.1,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)


def texts_of(messages: Sequence[dict[str, Any]]) -> list[str]:
    """A conversation in the pieces that the renderer encodes."""
    system, *others = messages
    texts = [f"system\n{system['content']}\n\n{tools_block(TOOLS)}", "assistant\n", "\n"]
    for message in others:
        calls = [call_text(call["function"]) for call in message.get("tool_calls", ())]
        said = message["role"] == "assistant"
        texts += calls or [message["content"] if said else f"{message['role']}\n{message['content']}"]
    return texts


def teach(folder: Path, updates: dict[str, int], learning_rate: float, say: Callable[[str], None]) -> None:
    """Train all weights of the model in `folder` on what clerks say, so many updates on each, and store it.

    First comes the good one, without the tools' descriptions, which is short: numbers are learnt to be copied where
    none is made up. Then the bad one.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    renderer, draw = load_renderer(folder), random.Random(4)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    total, losses = sum(updates.values()), list[float]()
    for update, clerk in enumerate([clerk for clerk, count in updates.items() for _ in range(count)]):
        talks = [demonstration(draw, CLERKS[clerk]) for _ in range(32)]
        rows = [renderer.render(talk, tools=TOOLS) if clerk == "bad" else renderer.render(talk[1:]) for talk in talks]
        length = max(len(row.token_ids) for row in rows)
        ids = torch.tensor([row.token_ids + [2] * (length - len(row.token_ids)) for row in rows])
        said = torch.tensor([row.sampled_mask + [False] * (length - len(row.token_ids)) for row in rows])[:, 1:]
        hidden = model.model(input_ids=ids).last_hidden_state[:, :-1]
        loss = torch.nn.functional.cross_entropy(model.lm_head(hidden[said]), ids[:, 1:][said])
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * min(1.0, (update + 1) / 20, 0.05 + 0.95 * (total - update) / total)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if update % 25 == 24:
            say(f"start: {update + 1}/{total} updates, loss {statistics.mean(losses[-10:]):.3f}")
    model.save_pretrained(folder)


def start_model(out: Path, model: str, updates: dict[str, int], say: Callable[[str], None]) -> Path:
    """The folder of the model that every run starts from, made once."""
    folder = out / "start"
    record = folder / "start.json"
    settings = {"model": model, "updates": updates, "clerks": CLERKS}
    if record.is_file():
        if (was := json.loads(record.read_text())) != settings:
            raise SystemExit(f"learning: {folder} was made with {was}, not {settings}; give another --out")
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if model == "small":
        write_small(folder)
    else:
        shutil.copytree(resolve_model(model, progress=say).folder, folder, dirs_exist_ok=True)
    teach(folder, updates, 3e-3 if model == "small" else 1e-4, say)
    record.write_text(json.dumps(settings))
    return folder

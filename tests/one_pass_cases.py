"""Gradients of one pass against two passes over the halves, in double precision, for models as people write them.

``python -m tests.one_pass_cases`` runs all 264 and counts them; transformers must be installed.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrizations as P

from ssgd import SSGD, Unserved

D = torch.float64
V = 23  # words


@dataclass
class Case:
    """``loss(net, x)`` is a mean over samples; where they meet in the loss, it is ``whole``'s two functions."""

    name: str
    net: nn.Module
    x: Any
    loss: Any
    every: bool = False  # biases and norms get noise too
    dim: int = 0
    whole: Any = None
    penalty: Any = None

    def __str__(self) -> str:
        return f"{self.name}{' every' if self.every else ''} B={self.size}"

    @property
    def size(self) -> int:
        x = next(iter(self.x.values())) if isinstance(self.x, dict) else self.x
        return int(x.shape[self.dim])

    def part(self, start: int, stop: int) -> Any:
        if isinstance(self.x, dict):
            return {k: v[start:stop] for k, v in self.x.items()}
        return self.x.narrow(self.dim, start, stop - start)


def gradients(net: nn.Module) -> dict[str, Tensor]:
    found = {k: p.grad for k, p in net.named_parameters() if p.grad is not None}
    for p in net.parameters():
        p.grad = None
    return found


def check(case: Case) -> tuple[str, str]:
    """("right", the largest error), ("WRONG", …) or ("refused", why)."""
    torch.manual_seed(0)
    net = case.net.to(D).train()
    if "transformers" in type(net).__module__:  # else the attention is flat, and its gradients rounding
        with torch.no_grad():
            for p in net.parameters():
                if p.dim() > 1:
                    p.normal_(0, p.shape[-1] ** -0.5)
    named = {k: p for k, p in net.named_parameters() if (case.every or p.dim() > 1) and p.requires_grad}
    opt = SSGD(torch.optim.SGD(net.parameters(), lr=0.1), 0.3, model=net, perturb=named.values(), seed=0)

    def shown(x: Any) -> Any:
        return case.loss(net, x) if case.whole is None else case.whole[0](net, x)

    try:
        opt.dry_run(shown, case.x, dim=case.dim)
        with opt.one_pass(dim=case.dim):
            total = case.loss(net, case.x) if case.whole is None else case.whole[1](case.whole[0](net, case.x))
            if case.penalty:
                total = total + case.penalty(net)
            total.backward()
    except Unserved as problem:
        gradients(net)
        return "refused", str(problem)
    plus, minus = opt.both_points()  # of the same step, since there are gradients
    found = gradients(net)
    true = by_halves(case, net, named, plus, minus)
    lost = [k for k in set(true) ^ set(found) if true.get(k, found.get(k)).norm() > 0]  # type: ignore[union-attr]
    most = max(g.norm() for g in true.values())
    off = max(
        ((found[k] - true[k]).norm() / (true[k].norm() + 1e-4 * most + 1e-30)).item() for k in set(true) & set(found)
    )
    return ("right" if off < 1e-10 and not lost else "WRONG"), f"{off:.1e} {lost or ''}"


def by_halves(case: Case, net: nn.Module, named: Any, plus: Any, minus: Any) -> dict[str, Tensor]:
    """The gradients of two passes."""
    half, size = (case.size + 1) // 2, case.size
    if case.whole is not None:

        class Outputs(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.net = net

            def forward(self, x: Any) -> Any:
                return case.whole[0](self.net, x)

        outs = [
            functional_call(Outputs(), {f"net.{k}": w + (v[w] - w).detach() for k, w in named.items()}, (x,))
            for v, x in ((plus, case.part(0, half)), (minus, case.part(half, size)))
        ]
        case.whole[1](tuple(torch.cat(o) for o in zip(*outs, strict=True))).backward()
        return gradients(net)
    kept = {w: w.detach().clone() for w in named.values()}
    for values, start, stop in ((plus, 0, half), (minus, half, size)):
        with torch.no_grad():
            for w in kept:
                w.copy_(values[w])
        loss = case.loss(net, case.part(start, stop)) + (case.penalty(net) if case.penalty else 0)
        ((stop - start) / size * loss).backward()
    with torch.no_grad():
        for w, value in kept.items():
            w.copy_(value)
    return gradients(net)


class Use(nn.Module):
    """Some parameters and layers, and a function of them and the input."""

    def __init__(self, f: Callable[[Any, Any], Any], **shapes: Any) -> None:
        super().__init__()
        self.f = f
        for k, s in shapes.items():
            setattr(self, k, s if isinstance(s, nn.Module) else nn.Parameter(torch.randn(s) * 0.5))

    def forward(self, x: Any) -> Any:
        return self.f(self, x)


class Nano(nn.Module):
    """A language model with positions and a tied head."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe, self.l, self.n = nn.Embedding(V, 8), nn.Embedding(20, 8), nn.Linear(8, 8), nn.LayerNorm(8)
        self.h = nn.Linear(8, V, bias=False)
        self.h.weight = self.wte.weight

    def forward(self, t: Tensor) -> Tensor:
        x = self.wte(t) + self.wpe(torch.arange(t.shape[1]))
        out: Tensor = self.h(self.n(x + F.gelu(self.l(x))))
        return out


def ids(samples: int, length: int) -> Tensor:
    return torch.randint(3, V, (samples, length))


def words(net: Any, x: Tensor) -> Tensor:
    out = net(x)
    return F.cross_entropy(getattr(out, "logits", out).flatten(0, 1), x.flatten())


def out(net: Any, x: Tensor) -> Tensor:
    y: Tensor = net(x).tanh().square().mean()
    return y


def first(net: Any, x: Tensor) -> Tensor:
    y: Tensor = net(x)[0].tanh().square().mean()
    return y


def adaptive() -> nn.Module:
    return nn.AdaptiveLogSoftmaxWithLoss(8, 10, [3, 6], div_value=2.0)


def key_token(s: Any, x: Tensor) -> Tensor:
    k, v = (torch.cat([x, token.expand(len(x), -1, -1)], 1) for token in (s.k, s.v))
    return F.scaled_dot_product_attention(x, k, v)


def standardised(s: Any, x: Tensor) -> Tensor:
    return F.conv2d(x, (s.w - s.w.mean((1, 2, 3), True)) / s.w.std((1, 2, 3), keepdim=True))


def coordinates(B: int) -> Callable[[Any, Tensor], Tensor]:
    return lambda s, x: s.l(x) + s.m(torch.linspace(0, 1, 2 * B, dtype=D).view(B, 2))


def codebook(s: Any, x: Tensor) -> Tensor:
    y: Tensor = (x - F.embedding(torch.cdist(x, s.w).argmin(-1), s.w)) * s.l(x)
    return y


def layers(sizes: tuple[int, ...] = (6, 7)) -> Iterator[Case]:
    """What people do with weights, one thing a net."""
    torch.manual_seed(0)

    def r(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=D)

    def lin(o: int = 8) -> nn.Module:
        return nn.Linear(8, o)

    for B in sizes:
        for every in (False, True):
            for t in (B, 2 * B):
                yield Case(f"nanoGPT T={t}", Nano(), ids(B, t), words, every)
            nets: list[tuple[str, nn.Module, Any]] = [
                ("weight_norm", nn.Sequential(P.weight_norm(lin()), nn.Tanh(), lin(3)), r(B, 8)),
                ("old weight_norm", nn.Sequential(nn.utils.weight_norm(lin()), nn.Tanh(), lin(3)), r(B, 8)),
                ("spectral_norm", P.spectral_norm(lin()), r(B, 8)),
                (
                    "class token",
                    Use(
                        lambda s, x: s.l(torch.cat((s.c.expand(len(x), -1, -1), x), 1) + s.p),
                        c=(1, 1, 8),
                        p=(1, B + 1, 8),
                        l=lin(),
                    ),
                    r(B, B, 8),
                ),
                ("positions (T,D), T=B", Use(lambda s, x: s.l(x + s.p), p=(B, 8), l=lin()), r(B, B, 8)),
                (
                    "positions (1,T,D)[:, :t]",
                    Use(lambda s, x: s.l(x + s.p[:, : x.shape[1]]), p=(1, 20, 8), l=lin()),
                    r(B, B, 8),
                ),
                (
                    "MHA batch first",
                    Use(lambda s, x: s.a(x, x, x)[0], a=nn.MultiheadAttention(8, 2, batch_first=True)),
                    r(B, B, 8),
                ),
                (
                    "TransformerEncoder",
                    nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 2),
                    r(B, B, 8),
                ),
                ("cosine", Use(lambda s, x: 5 * F.normalize(x) @ F.normalize(s.w).t(), w=(8, 8)), r(B, 8)),
                ("cosine F.linear", Use(lambda s, x: F.linear(F.normalize(x), F.normalize(s.w)), w=(B, 8)), r(B, 8)),
                ("LoRA merged", Use(lambda s, x: F.linear(x, s.w + s.a @ s.b), w=(8, 8), a=(8, 2), b=(2, 8)), r(B, 8)),
                ("einsum", Use(lambda s, x: torch.einsum("btd,ed->bte", x, s.w), w=(4, 8)), r(B, B, 8)),
                (
                    "w[:k] slices",
                    Use(lambda s, x: torch.cat([F.linear(x, s.w[:3]), F.linear(x, s.w[3:])], -1), w=(B, 8)),
                    r(B, 8),
                ),
                (
                    "qkv chunks",
                    Use(lambda s, x: F.linear(x, s.w.chunk(3)[0]) * F.linear(x, s.w.chunk(3)[2]), w=(24, 8)),
                    r(B, 8),
                ),
                ("w.view, w @ x.t()", Use(lambda s, x: (s.w.view(4, 8) @ x.t()).t(), w=(32, 1)), r(B, 8)),
                ("adaptive log_prob", Use(lambda s, x: s.a.log_prob(x), a=adaptive()), r(B, 8)),
                ("bilinear", Use(lambda s, x: s.b(x, x.flip(1)), b=nn.Bilinear(8, 8, 3)), r(B, 8)),
                ("learned key token", Use(key_token, k=(1, 1, 8), v=(1, 1, 8)), r(B, B, 8)),
                (
                    "queries repeated",
                    Use(
                        lambda s, x: F.scaled_dot_product_attention(s.q.unsqueeze(0).repeat(len(x), 1, 1), x, x),
                        q=(4, 8),
                    ),
                    r(B, B, 8),
                ),
                (
                    "queries alone in attention",
                    Use(lambda s, x: F.scaled_dot_product_attention(s.q.expand(len(x), -1, -1), x, x), q=(1, 4, 8)),
                    r(B, B, 8),
                ),
                (
                    "conv, groups, norm",
                    Use(
                        lambda s, x: s.c(s.n(s.d(x))),
                        d=nn.Conv2d(4, 8, 3, groups=2),
                        n=nn.GroupNorm(2, 8),
                        c=nn.ConvTranspose2d(8, 3, 2),
                    ),
                    r(B, 4, 6, 6),
                ),
                ("standardised conv", Use(standardised, w=(B, 4, 3, 3)), r(B, 4, 6, 6)),
                ("softplus, mixture", Use(lambda s, x: x @ F.softplus(s.w).softmax(0), w=(8, 8)), r(B, 8)),
                ("cdist prototypes", Use(lambda s, x: torch.cdist(x, s.w), w=(B, 8)), r(B, 8)),
                (
                    "lookup by [ids]",
                    Use(lambda s, x: s.w[x] * s.p[torch.arange(x.shape[1])], w=(V, 8), p=(20, 8)),
                    ids(B, B),
                ),
                (
                    "coordinates by a net",
                    Use(coordinates(B), l=lin(), m=nn.Sequential(nn.Linear(2, 8), nn.Tanh(), lin())),
                    r(B, B, 8),
                ),
                ("x.repeat(2,1)", Use(lambda s, x: s.l(x.repeat(2, 1)), l=lin(4)), r(B, 8)),
                (
                    "experts bmm",
                    Use(lambda s, x: torch.bmm(x.unsqueeze(0).expand(len(s.w), -1, -1), s.w), w=(B, 8, 4)),
                    r(B, 8),
                ),
                ("in place x += p", Use(lambda s, x: s.l((x * 1).add_(s.p)), p=(1, 8), l=lin(4)), r(B, 8)),
                ("batch statistics", Use(lambda s, x: s.l(x - x.mean(0)) * s.g, l=lin(4), g=(1, 4)), r(B, 8)),
                ("flattened first", Use(lambda s, x: s.l(x.flatten(0, 1)), l=lin(4)), r(B, B, 8)),
                (
                    "two uses of a table",
                    Use(lambda s, x: F.embedding(x, s.w) + F.embedding(torch.arange(9), s.w).mean(0), w=(V, 8)),
                    ids(B, B)[:, 0],
                ),
                ("own noise", Use(lambda s, x: s.l(x + torch.randn_like(x) * 0), l=lin(4)), r(B, 8)),
                ("codebook", Use(codebook, w=(5, 8), l=lin()), r(B, B, 8)),
                ("list of rows", Use(lambda s, x: sum(F.linear(x, q[None]) for q in s.w), w=(3, 8)), r(B, 8)),
                (
                    "arange(B) as positions",
                    Use(lambda s, x: s.l(x) + F.embedding(torch.arange(len(x)), s.p), p=(30, 4), l=lin(4)),
                    r(B, 8),
                ),
                ("BatchNorm", nn.Sequential(lin(), nn.BatchNorm1d(8), lin(3)), r(B, 8)),
                ("w.data", Use(lambda s, x: F.linear(x, s.w.data) + F.linear(x, s.w), w=(4, 8)), r(B, 8)),
            ]
            for name, net, x in nets:
                yield Case(name, net, x, out, every)
            yield Case("LSTM", nn.LSTM(8, 6, batch_first=True), r(B, B, 8), first, every)
            yield Case("GRU 2 layers (S,B,E)", nn.GRU(8, 6, 2), r(B, B, 8), first, every, dim=1)
            across = {
                "MHA (S,B,E)": (Use(lambda s, x: s.a(x, x, x)[0], a=nn.MultiheadAttention(8, 2)), r(B, B, 8)),
                "Linear on (S,B,E), S=2B": (Use(lambda s, x: s.l(x), l=lin(4)), r(2 * B, B, 8)),
                "(S,B,E) flattened": (Use(lambda s, x: s.l(x.flatten(0, 1)), l=lin(4)), r(2 * B, B, 8)),
            }
            for name, (net, x) in across.items():
                yield Case(name, net, x, out, every, dim=1)
            yield Case("LayerScale", Use(lambda s, x: x + s.g * s.l(x), g=(8,), l=lin()), r(B, 3, 8), out, True)
            target = Use(lambda s, x: s.a(x, (x[:, 0].abs() * 5).long().clamp(max=9)).output, a=adaptive())
            yield Case("adaptive softmax", target, r(B, 8), lambda net, x: -net(x).mean(), every)
            yield Case(
                "norm in the loss",
                Use(lambda s, x: s.l(x), l=lin(3)),
                r(B, 8),
                out,
                every,
                penalty=lambda net: 0.1 * net.l.weight.norm() + net.l.weight.pow(2).sum() * 0.01,
            )
            yield Case(
                "loss times weight",
                Use(lambda s, x: s.l(x), l=lin(3)),
                r(B, 8),
                lambda net, x: out(net, x) * (1 + net.l.weight.norm()),
                every,
            )


def transformers(sizes: tuple[int, ...] = (6, 7), attentions: tuple[str, ...] = ("eager", "sdpa")) -> Iterator[Case]:
    """Hugging Face's models, small, also with as many positions as samples."""
    import transformers as hf

    hf.logging.set_verbosity_error()
    torch.manual_seed(0)
    none = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    small = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24)
    zero = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)
    pictures = dict(image_size=32, patch_size=8, **small)
    text = dict(vocab_size=V, max_position_embeddings=16, **small)

    def features(net: Any, x: Any) -> Tensor:
        y: Tensor = net(x).last_hidden_state.tanh().square().mean()
        return y

    def pooled(net: Any, x: Any) -> Tensor:
        found = net(x)
        y: Tensor = found.pooler_output.tanh().square().mean() + found.last_hidden_state.square().mean() * 0.1
        return y

    def masked(net: Any, x: Any) -> Tensor:
        return F.cross_entropy(net(x["i"], attention_mask=x["m"]).logits.flatten(0, 1), x["i"].flatten())

    def translated(net: Any, x: Any) -> Tensor:
        return F.cross_entropy(net(input_ids=x, decoder_input_ids=x).logits.flatten(0, 1), x.flatten())

    def heard(net: Any, x: Any) -> Tensor:
        found = net(input_features=x["f"], decoder_input_ids=x["i"]).logits
        return F.cross_entropy(found.flatten(0, 1), x["i"].flatten())

    def embeds(net: Any, x: Any) -> Any:
        o = net(input_ids=x["i"], pixel_values=x["p"])
        return o.image_embeds, o.text_embeds

    def contrast(e: Any) -> Tensor:
        labels = torch.arange(len(e[0]))
        return F.cross_entropy(10 * e[0] @ e[1].t(), labels) + F.cross_entropy(10 * e[1] @ e[0].t(), labels)

    def image(B: int) -> Tensor:
        return torch.randn(B, 3, 32, 32, dtype=D)

    for attn in attentions:
        how = dict(attn_implementation=attn)
        for B in sizes:
            for every in (False, True):
                config = hf.GPT2Config(vocab_size=V, n_positions=14, n_embd=16, n_layer=2, n_head=2, **how, **zero)
                gpt = hf.GPT2LMHeadModel(config)
                yield Case(f"GPT2 {attn} T=B", gpt, ids(B, B), words, every)
            yield Case(f"GPT2 {attn} T=5", gpt, ids(B, 5), words)
            yield Case(
                f"GPT2 {attn} mask T=2B", gpt, dict(i=ids(B, 2 * B), m=(torch.rand(B, 2 * B) < 0.8).long()), masked
            )
            bert = hf.BertModel(hf.BertConfig(**text, **how, **none))
            vit = hf.ViTModel(hf.ViTConfig(**pictures, **how, **none))
            for every in (False, True):
                yield Case(f"BERT {attn} T=B", bert, ids(B, B), pooled, every)
                yield Case(f"ViT {attn}", vit, image(B), features, every)
            sizes_of_t5 = dict(vocab_size=V, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2)
            t5 = hf.T5ForConditionalGeneration(
                hf.T5Config(
                    **sizes_of_t5,
                    dropout_rate=0.0,
                    relative_attention_num_buckets=8,
                    decoder_start_token_id=0,
                    pad_token_id=0,
                )
            )
            try:
                t5.set_attn_implementation(attn)
            except Exception as problem:
                print(f"T5 has no {attn}: {problem}")
            for t in (B, 2 * B):
                yield Case(f"T5 {attn} T={t}", t5, ids(B, t), translated)
            yield Case(f"T5 {attn} T={B}", t5, ids(B, B), translated, True)
            config = hf.LlamaConfig(vocab_size=V, max_position_embeddings=32, num_key_value_heads=1, **how, **small)
            llama = hf.LlamaForCausalLM(config)
            for every in (False, True):
                yield Case(f"Llama {attn} T=B", llama, ids(B, B), words, every)
            ends = dict(eos_token_id=V - 1, bos_token_id=0, pad_token_id=1)
            clip = hf.CLIPModel(
                hf.CLIPConfig(text_config=dict(**text, **ends), vision_config=pictures, projection_dim=12)
            )
            clip.set_attn_implementation(attn)
            for every in (False, True):
                x = dict(i=ids(B, B), p=image(B))
                yield Case(f"CLIP {attn}", clip, x, None, every, whole=(embeds, contrast))
            sides = {
                f"{side}_{key}": value
                for side in ("encoder", "decoder")
                for key, value in dict(layers=1, attention_heads=2, ffn_dim=16).items()
            }
            starts = dict(decoder_start_token_id=0, pad_token_id=0, bos_token_id=0, eos_token_id=0, dropout=0.0)
            positions = dict(max_source_positions=6, max_target_positions=14)
            config = hf.WhisperConfig(vocab_size=V, num_mel_bins=4, d_model=16, **sides, **starts, **positions)
            whisper = hf.WhisperForConditionalGeneration(config)
            whisper.set_attn_implementation(attn)
            yield Case(f"Whisper {attn} T=B", whisper, dict(f=torch.randn(B, 4, 12, dtype=D), i=ids(B, B)), heard)
    for B in (4, 5):
        shape = dict(image_size=32, patch_size=4, embed_dim=8, depths=[2, 2], num_heads=[2, 2], window_size=4)
        for every in (False, True):
            swin = hf.SwinModel(hf.SwinConfig(drop_path_rate=0.0, **shape, **none))
            yield Case("Swin", swin, image(B), features, every)


def main() -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    start, counts = time.time(), Counter[str]()
    kinds = {"layers": layers, "transformers": transformers}
    for name in sys.argv[1:] or kinds:
        for case in kinds[name]():
            found, what = check(case)
            counts[found] += 1
            print(f"{found:8} {case}: {what[:200]}", flush=True)
    print(", ".join(f"{number} {found}" for found, number in counts.items()), f"of {counts.total()},", end=" ")
    print(f"{time.time() - start:.0f} s")


if __name__ == "__main__":
    main()

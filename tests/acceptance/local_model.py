"""llama.cpp's own server with a tiny model of random weights, as a program: `python local_model.py FOLDER CONTEXT`.

It speaks OpenAI's and Anthropic's API, prints its URL, and ends when its standard input does. The model has next to
no vocabulary: nearly every character is a token. It answers with a few random words, and as a schema asks where the
API has such a thing.
"""

import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import xllamacpp

LAYERS, WIDTH, HEADS, HIDDEN, LONGEST = 1, 64, 1, 64, 1 << 17
WORDS = ('the', 'of', 'and', 'to', 'a', 'in', 'is', 'was', 'it', 'for', 'on', 'that', 'as', 'with', 'has', 'shares')


def write_model(path: Path) -> None:
    """Writes a model of 300 kB."""
    tokens = ['<unk>', '<s>', '</s>', *(f'<0x{byte:02X}>' for byte in range(256))]
    tokens += [*(chr(code) for code in range(33, 127)), '▁', *(f'▁{word}' for word in WORDS)]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL] + [gguf.TokenType.BYTE] * 256
    kinds += [gguf.TokenType.NORMAL] * (len(tokens) - len(kinds))
    writer = gguf.GGUFWriter(path, 'llama')
    writer.add_context_length(LONGEST)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model('llama')
    writer.add_token_list([token.encode() for token in tokens])
    writer.add_token_scores([float(-number) for number in range(len(tokens))])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:")
    rng: Any = np.random.default_rng(7)

    def weights(*shape: int, scale: float) -> Any:  # noqa: ANN401 - an array, where numpy is installed
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    # The first coordinate is the same for every token: by it a token is made likely, or never said.
    embedding, output = weights(len(tokens), WIDTH, scale=0.3), weights(len(tokens), WIDTH, scale=0.1)
    embedding[:, 0], output[:, 0] = 2.0, 0.0
    output[[0, 1, *range(3, 259)], 0] = -20.0
    output[[2, tokens.index('"')], 0] = 0.5, 0.4
    one: Any = np.ones(WIDTH, np.float32)
    tensors: dict[str, Any] = {'token_embd': embedding, 'output_norm': one, 'output': output}
    for block in range(LAYERS):
        tensors |= {f'blk.{block}.{name}_norm': one for name in ('attn', 'ffn')}
        for name in ('q', 'k', 'v', 'output'):
            tensors[f'blk.{block}.attn_{name}'] = weights(WIDTH, WIDTH, scale=0.02)
        tensors[f'blk.{block}.ffn_gate'] = weights(HIDDEN, WIDTH, scale=0.02)
        tensors[f'blk.{block}.ffn_up'] = weights(HIDDEN, WIDTH, scale=0.02)
        tensors[f'blk.{block}.ffn_down'] = weights(WIDTH, HIDDEN, scale=0.02)
    for name, tensor in tensors.items():
        writer.add_tensor(f'{name}.weight', tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main(folder: Path, context: int) -> None:
    """Serves until the standard input ends."""
    model = folder / 'random.gguf'
    write_model(model)
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.n_ctx, params.n_parallel, params.port = context, 1, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.warmup = params.ui = False
    sampling = params.sampling
    sampling.seed, sampling.top_k, sampling.top_p, sampling.min_p, sampling.temp = 7, 0, 1.0, 0.0, 1.0
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)  # noqa: T201 - a program
    sys.stdin.read()


if __name__ == '__main__':
    main(Path(sys.argv[1]), int(sys.argv[2]))

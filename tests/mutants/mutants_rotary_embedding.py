"""The mutants of rotary_embedding."""

_TEXT = "rotary_embedding.cu"
ROTARY_EMBEDDING = (
    ("a group too many", _TEXT, "if (group >= groups) return;", "if (group > groups) return;"),
    ("no heads left out", _TEXT, "if (head + k * apart >= heads) break;", "if (head + k * apart > heads) break;"),
    ("sine of the wrong sign", _TEXT, "convert<acc_t>(c.at(e, 0)) - v * a", "convert<acc_t>(c.at(e, 0)) + v * a"),
    ("backward that does not turn back", _TEXT, "a = BACKWARD ? -convert", "a = BACKWARD ? convert"),
    ("angle of the other of the pair", _TEXT, "v * convert<acc_t>(c.at(e, 1))", "v * convert<acc_t>(c.at(e, 0))"),
    ("the sine's table for the cosine's", _TEXT, "c.load(cos + at[2]", "c.load(sin + at[3]"),
    ("heads side by side in the result", _TEXT, "of[k].store(to + k * y_apart", "of[k].store(to + k * x_apart"),
    ("all heads the first", _TEXT, "of[k].load(from + k * x_apart", "of[k].load(from"),
    ("copied columns from the turned ones", _TEXT, "column = 2 * half + copied", "column = half + copied"),
    ("halves for neighbours", _TEXT, "return INTERLEAVED ? (2 * pack + i)", "return !INTERLEAVED ? (2 * pack + i)"),
)

"""Work of the input, by what its busiest line of the program calls, and what to do in its place."""

import re
from dataclasses import dataclass

from gpu_util_callback.diagnosis.advice.input_wait import InputWait
from gpu_util_callback.diagnosis.thresholds import A_FEW


@dataclass(frozen=True, slots=True)
class LineWork:
    """A kind of work in the input.

    Attributes:
        does: what the line does, a clause.
        instead: what to do in its place, an imperative without its full stop.
        called: pattern of what it calls, or of the library.
        slow: why it is slow, as recorded; "" = by what it calls alone.
        code: what to paste.
        changes: what else the remedy changes; asks: a question whose answer must be yes.
        once: the remedy makes its results before training, where they repeat.
        rewritten: the remedy changes that line alone, and its results: where cores are free, more workers come first.
        share: of its time that the remedy saves, 0-1; 0 = not known, what it does may be needed.
        proof: what measured its gain, as in `Entry`.
    """

    does: str
    instead: str
    called: str = ""
    slow: str = ""
    code: str = ""
    changes: str = ""
    asks: str = ""
    once: bool = False
    rewritten: bool = False
    share: float = 0.0
    proof: str = ""


ONCE = "once, before training"
# Calls beside that which joins rows: they compute nothing of a row.
_HANDED_ON = r"(?:\S+\.)?(?:range|len|list|zip|enumerate|(?:as)?array|astype|float|from_numpy|(?:as_)?tensor|copy)"
_ONE_BY_ONE = "it goes through values one by one in Python"
_IMAGES = "PIL|cv2|imageio|skimage|torchvision|tifffile|pydicom|librosa|torchaudio|soundfile|wave"
MAKES_ARRAY = r"^(\S+\.)?(tensor|as_tensor|FloatTensor|LongTensor|array|asarray|convert_to_tensor)\b"
_CONVERTED = "tensorflow.converted_call"  # AutoGraph's, of each call in what it has rewritten
_BY_REASON = (
    LineWork(
        "it turns, zooms or deforms arrays one at a time",
        "Interpolate linearly (order=1), or turn whole batches where the model computes (random layers)",
        r"^scipy\.(rotate|zoom|shift|affine_transform|geometric_transform|map_coordinates|spline_filter)",
        asks="Is linear interpolation good enough, in place of scipy's splines (order=3 unless it is given)?",
        rewritten=True,
        share=0.6,  # seven calls were 2.7 to 9 times as fast with order=1
        proof="turned_by_splines",
    ),
    LineWork(
        "it smooths arrays, one at a time",
        "Draw and smooth that on a coarse grid, and enlarge it linearly",
        r"^scipy\.(gaussian|uniform)_filter",
        code="small = scipy.ndimage.gaussian_filter(rng.uniform(-1, 1, (h // 8, w // 8)), sigma / 8) / 8\n"
        "field = scipy.ndimage.zoom(small, 8, order=1)  # of (h, w)",
        asks="Are these random fields, as for elastic deformations?",
        rewritten=True,
        share=0.75,  # two fields of 192 x 192 were 5.1 to 5.9 times as fast
        proof="smoothed_fields",
    ),
    LineWork("it waits for a lock", "Hold that only around what it protects, or give each worker its own", slow="lock"),
    LineWork(
        "it puts all rows in a random order",
        "Take parts of one order, drawn once a pass",
        slow="draw",
        code="rows = order[i * n : i * n + n]  # order = rng.permutation(...), once a pass",
        changes="which rows meet in a batch",
    ),
    LineWork(
        "it calls a model",
        f"Compute the model's outputs {ONCE}, many samples at a time, and let the input index them",
        slow="model",
        code="outputs = teacher(x)  # once, before training, or teacher.predict(x) in Keras; in the input outputs[i]",
        asks="Are its outputs the same in every epoch, of unchanged samples?",
        once=True,
        share=0.9,
        proof="blind/fifth/teacher_labels",
    ),
    LineWork(
        "it takes the rows of a batch one by one",
        "Index with the numbers of all of them at once: the values stay the same",
        rf"^(jax|tensorflow|datasets|cupy|zarr|polars)\.|^(torch|scipy)\..*(collate|__getitem__)"
        rf"|^({_HANDED_ON} )*(\S+\.)?(stack|cat|concatenate)( {_HANDED_ON})*$",
        "rows",
        "x = x[rows]  # rows: the numbers of a whole batch; in place of stacking x[i] for each",
        share=0.9,
        proof="blind/fifth/row_by_row",
    ),
    LineWork(
        "it takes rows out of a table one by one",
        "Convert its columns to NumPy arrays once, and index these",
        r"^pandas\..*\.(__getitem__|iterrows|itertuples|query|xs|i?loc|i?at)$",
        code="values = table[columns].to_numpy()  # once, in __init__; then values[i] or values[rows]",
        share=0.9,
        proof="blind/first/pandas_rows",
    ),
    LineWork(
        "AutoGraph has rewritten it, as it is defined within the mapped function: each of its calls takes longer",
        "Define it outside of that function, at the top level of the module",
        f"^{_CONVERTED}$",
    ),
    LineWork(
        "each operation on the arrays starts from Python",
        "Convert them to NumPy once, before the first batch: an index is then a view",
        r"^(jax|tensorflow)\.",
        code="x, y = np.asarray(x), np.asarray(y)  # once, before the generator or the dataset is made",
        asks="Does it only index arrays, or compute what NumPy can?",
        share=0.85,
    ),
    LineWork(_ONE_BY_ONE, f"Compute whole arrays (NumPy), or {ONCE}", rf"^(?!({_IMAGES}|scipy)\.)", slow="rows"),
    LineWork("it copies an array to make it longer", "Collect the parts in a list, and join them once", slow="grow"),
)
_PARSERS = "json|csv|xml|yaml|html|_strptime|_?pickle|joblib|re|regex|transformers|tokenizers|nltk|spacy|unicodedata"
_READERS = r"(pandas|polars)\.(_?(read|load|open|parse)|\w*(Parser|Text))"
# Three lines each: a pattern of what is called, what that does, and what to do in its place. The first one counts.
_BY_CALL = rf"""
^(zarr|numcodecs|blosc2?|tensorstore|pyarrow|fastparquet|h5py\.Dataset)\.|\b(result read$|read_(parquet|row_g|feather))
it reads and unpacks chunks, or groups of rows, each time
Read it {ONCE}, keep chunks that were read, or let a chunk hold what is asked for together (or shuffle within chunks)
^(numpy\.)?([a-z]+1d|isin|unique|(arg|lex)sort|_(mean|var|std)|median|percentile|quantile)\b|\w\.(sort|argsort|unique)\b
it sorts, compares or averages whole arrays
Do that {ONCE}; for a few ask a mask or np.searchsorted, or draw again those that do not fit
^numpy\.(convolve|correlate)\b|\b(convolve|correlate)[12]d\b
it convolves directly, so that the time grows with the product of both lengths
Use scipy.signal.fftconvolve where both are long, or convolve whole batches on the accelerator
^(zipfile|gzip|tarfile|bz2|lzma|numpy\.NpzFile|h5py)\b|\bzlib\.|^(numpy|torch)\.load\b|\b(listdir|scandir|iterdir|r?glob|walk)\b
it opens, lists or unpacks files
Do that once, and keep arrays of it; join many small files (a .npy, of which np.load(..., mmap_mode="r") reads parts)
^torch\._\w*DataLoaderIter\b
it takes the batches of a DataLoader
Give that loader itself to fit or monitor.batches(), which then see its workers; index arrays in memory by whole batches
^({_PARSERS})\.|^({_READERS}|numpy\.\w+txt)|\.(split|findall|finditer|sub|lower|encode|tokenize)\b
it parses files or text
Parse all of it {ONCE}, and store arrays of numbers (np.save)
^(pandas|polars)\.
it computes on a table
Compute its columns, or its groups (groupby), {ONCE}, and keep them as NumPy arrays
^({_IMAGES})\.|\b(imread|imdecode|resize)\b
it decodes or transforms files
Do what is the same in each pass once, and store the smaller results; what is random can be layers of the model
^(sqlite3|sqlalchemy|pymongo|psycopg\w*|duckdb|redis|lmdb)\.|\b(execute|fetchone|fetchall)\b
each sample is a query of its own
Read the rows of a batch by one query, or all of them once into arrays; a column that is searched needs an index
^(requests|urllib\w*|http|httpx|aiohttp|boto\w*|s3fs|gcsfs|fsspec|google|socket|ssl)\.
it waits for a network
Copy the data to a local disk once, or fetch ahead in several threads
^scipy\.resample\b
it resamples by Fourier transforms, slow for lengths that are no products of small numbers
Take lengths of scipy.fft.next_fast_len, or interpolate linearly (np.interp), if that is good enough
^scipy\.\w*(Index|csc|csr|coo|lil|sparse)
it takes rows out of a sparse matrix
Store it by rows once (matrix.tocsr()), and take all rows of a batch at a time
\b(choices?|multinomial)\b
it draws rows, for which all weights (p=), if there are any, are added up each time
Add them up once: sums = np.cumsum(p), then rows = np.searchsorted(sums, rng.random(n)); where they change, in a tree
^(scipy|sklearn|statsmodels|pywt)\.
it computes with SciPy, or a library on it
Give it a whole batch (along an axis), or all samples {ONCE}; what is random in images can be layers of the model
^datasets\.
each row is decoded and formatted by itself
Ask for the rows of a batch at once (dataset[rows]), or compute {ONCE} with map(..., batched=True)
{MAKES_ARRAY}
it makes an array of a list, number by number
Make NumPy arrays of the data once, and join parts of these by np.stack
"""
_LINES = _BY_CALL.strip().splitlines()
KINDS = (*_BY_REASON, *map(LineWork, _LINES[1::3], _LINES[2::3], _LINES[0::3]))


def work_of(wait: InputWait) -> LineWork | None:
    """Return the kind of work in which the input's function spends most of its time; None = not known."""
    call = wait.calls.named or {}
    called, slow_reason, library = call.get("called"), call.get("slow") or "", call.get("library") or ""
    if called is None and library and wait.in_library(library):  # several functions of one library
        called = f"{library}."
    elif called is None and slow_reason:  # known by its reason alone
        called = ""
    # Too few samples, or the wait is not for that function.
    if called is None or (call.get("samples") or 0) < 2 * A_FEW or wait.made_at_once:
        return None
    if called == _CONVERTED and wait.waits:  # what AutoGraph calls there waits, in C
        return None
    # A library's own dataset: how it asks for rows is not the program's.
    if called and "line" not in call and not re.match(rf"({_IMAGES})\.", called):
        return None
    return next((kind for kind in KINDS if kind.slow in ("", slow_reason) and re.search(kind.called, called)), None)

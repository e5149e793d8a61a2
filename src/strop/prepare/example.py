"""The configuration that `strop data prepare --example` prints."""

EXAMPLE = """\
# strop data prepare prepare.toml
#
# From raw sets to train.parquet, with a report of how every row ended. Paths are relative to the folder in which
# the command runs. Keys of the whole preparation stand first, before any [[...]].

out = "prepared"          # the folder for everything that comes out; --out on the command line overrides it
seed = 0
broken_rows = "stop"      # at a row that cannot be read; "skip" leaves such rows out, counted and listed

# ---- Sources. Where two hold the same question, the one named first keeps it.  ----

[[sources]]               # a file of your own: .jsonl, .jsonl.gz, .json (one list), .parquet or .csv
path = "train.jsonl"
columns = { prompt = "question", answer = "answer" }    # optional: usual names are recognised
# columns = { prompt = "question", answer = "answer", id = "uid", solution = "worked", extra = ["level"] }
# name = "mine"           # what the problems say they come from; by default the file's name
# domain = "math"
# limit = 1000            # the first so many rows

# [[sources]]             # a set of the papers by name, from the hub (pip install "strop[hub]") ...
# mapping = "deepscaler"  # `strop data mappings` lists them all

# [[sources]]             # ... or a copy of it
# mapping = "numinamath-1.5"
# path = "numina.parquet"
# where.source = ["amc_aime", "olympiads", "olympiads_ref", "aops_forum", "cn_contest", "inequalities", "number_theory"]

# [[sources]]             # any set of the hub
# hub = "OWNER/NAME"
# split = "train"
# columns = { prompt = "problem", answer = "answer" }

# [[sources]]             # a generator
# source = { piece = "ReasoningGym", task = "chain_sum", size = 1000 }

# ---- Steps, in this order. Each names its piece; every other key has a default.  ----

[[steps]]
piece = "Verifiable"      # no proofs, no missing answers, nothing the verifier refuses, code with at least five tests
verifier = { piece = "Answer", extract = "any" }
min_tests = 5

[[steps]]
piece = "AnswersAgree"    # the answer read again out of the worked solution must be the given one
missing = "keep"          # what is done with problems without one (`solution` in the source's columns, see above)

[[steps]]
piece = "LinksAndFigures"

[[steps]]
piece = "EnglishOnly"

# [[steps]]               # code: tests in one form, without those the statement shows, run by the set's own solution
# piece = "StandardTests"
# [[steps]]
# piece = "IllustrativeTests"
# [[steps]]
# piece = "ReferenceSolutions"
# verifier = { piece = "CodeVerifier" }

[[steps]]
piece = "Deduplicate"     # within and across sets
near = "minhash"          # or "ngram", or "none" for what is typed differently only
similarity = 0.8          # the share of words that near duplicates have in common; their numbers are always equal

# [[steps]]
# piece = "DeduplicateByEmbedding"
# model = "path/to/encoder"
# similarity = 0.95

[[steps]]
piece = "Decontaminate"   # pairs.jsonl lists what was found
against = [{ path = "test.jsonl", columns = { prompt = "question", answer = "answer" } }]
# against = ["aime24", "aime25", "math500"]             # by name, from the hub
# shared_run = 13         # also whatever has 13 words in a row in common with a benchmark

# [[steps]]               # how often a strong model solves each problem: drop what it never solves ...
# piece = "Difficulty"
# model.path = "Qwen/Qwen3-30B-A3B"
# samples = 8
# min_correct = 1
# max_correct = 8

# [[steps]]               # ... then the policy that is to be trained: drop what it always or never solves
# piece = "Difficulty"
# model.path = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
# samples = 8
# sampling = { temperature = 1.0, max_new_tokens = 32768 }
# template = { piece = "ChatTemplate" }
# verifier = { piece = "Answer", extract = "boxed" }

# [[steps]]               # language models judge wording, completeness, format and distractions
# piece = "Judges"
# votes = 16              # of each judge
# threshold = 9           # valid votes that keep a problem
# judges = [
#   { url = "http://127.0.0.1:8000/v1", model = "Qwen2.5-72B-Instruct" },
#   { url = "https://example.org/v1", model = "Llama-3.3-70B", api_key_env = "EXAMPLE_KEY", prompt_price = 0.5 },
# ]

# [[steps]]               # SFT data: the trace is the reference
# piece = "NoTrivialPrompts"
# [[steps]]
# piece = "TraceLength"
# max_tokens = 12000
# tokenizer = "Qwen/Qwen3-0.6B"

[[steps]]
piece = "Split"           # validation.parquet, whose questions train.parquet does not have
count = 1000
"""

"""The axis legend, and the tensor types that signatures name.

batch       sequences that are processed together
token       positions of one sequence; padding is always cut off before
width       features of the residual stream (d)
head        attention heads; kv_head where keys and values are shared between heads
joined      features of all heads side by side
head_width  features of one head's query and key (d_h); value_width of its value
inner       hidden features of a feed-forward sublayer (d_ff)
key         positions attended to, where they are not the same as token
vocab       entries of the vocabulary
layer       blocks of the stack
stream      residual streams beside each other (n)
place       whatever axes stand before the width
"""

from collections.abc import Callable

from jaxtyping import Bool, Float, Int
from torch import Tensor

Stream = Float[Tensor, "batch token width"]
Streams = Float[Tensor, "batch token stream width"]
StreamRows = Float[Tensor, "batch token row stream"]
StreamWeights = Float[Tensor, "batch token stream"]
Matrices = Float[Tensor, "*place row column"]
Features = Float[Tensor, "*place width"]
Joined = Float[Tensor, "batch token joined"]
Heads = Float[Tensor, "batch head token head_width"]
KeyHeads = Float[Tensor, "batch kv_head token head_width"]
Hidden = Float[Tensor, "token width"]
States = Float[Tensor, "token *stream width"]
Tokens = Int[Tensor, " token"]
TokenIds = Int[Tensor, "..."]
Queries = Float[Tensor, "head token head_width"]
Keys = Float[Tensor, "kv_head key head_width"]
Values = Float[Tensor, "kv_head key value_width"]
Attentions = Float[Tensor, "head token key"]
Allowed = Bool[Tensor, "#head token key"]
HeadVector = Float[Tensor, " head"]
TokenVector = Float[Tensor, " token"]
Vocabulary = Float[Tensor, " vocab"]
Matrix = Float[Tensor, "row column"]
Scalar = Float[Tensor, ""]
Map = Callable[[Tensor], Tensor]

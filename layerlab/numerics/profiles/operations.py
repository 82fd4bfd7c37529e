"""The operations of a Transformer that engines compute differently, by name."""

from collections.abc import Mapping

# Profiles that name the broader operation alone mean both.
BROADER = {"branch_cast": "norm_cast", "branch_norm": "norm"}
OPERATIONS: Mapping[str, str] = {
    "weights": "parameters of products, as they are stored, but for those of head and router",
    "head_weights": "parameters of the head, as products read them",
    "router_weights": "parameters of a router, as they are stored",
    "norm_weights": "parameters of norms, as they are stored",
    "embedding_weights": "the table of embeddings, as it is stored",
    "other_weights": "parameters that no product reads, as biases, as they are stored",
    "embedding": "what is computed between the table of embeddings and the first block",
    "norm_input": "sums of the residual stream as a norm reads them: fp32 before they are rounded",
    "norm_inside": "what a norm computes before its result: squares, means, roots",
    "norm_cast": "the normalized features before they meet the norm's weight",
    "norm": "the result of a norm",
    "branch_cast": "norm_cast of what a product gave, as queries, and not of the residual stream",
    "branch_norm": "the result of such a norm where its code ends by casting it back",
    "rotary_tables": "sines and cosines",
    "rotary": "products and sums that rotate queries and keys",
    "factors": "what meets a parameter in a product, as the product reads it",
    "head_factors": "what meets the head's parameters, as the product reads it",
    "router_factors": "what meets a router's parameters, as the product reads it",
    "projection": "results of products with parameters, but for the last",
    "queries": "queries as attention reads them",
    "cache": "keys and values as attention reads them",
    "scores": "products of queries and keys, scaled and masked",
    "softmax": "the softmax of the scores",
    "attention_weights": "attention weights as the product with the values reads them",
    "context": "sums of values, weighted by attention",
    "activation_inside": "what an activation computes before its result",
    "activation": "the result of an activation",
    "gate": "products of a gate and what it lets through",
    "residual": "sums of the residual stream and what a block adds",
    "router": "scores and weights of a router, by which tokens find experts",
    "experts": "weighted sums of what experts return",
    "head": "the logits",
    "log_softmax": "log-probabilities of the logits",
    "other": "everything else",
}

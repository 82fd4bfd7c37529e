"""What the measures of a synthetic report declare; columns as in a real one."""

from typing import Any

DECLARED: dict[str, dict[str, Any]] = {
    "diversity": {
        "title": "Token diversity",
        "unit": "that of the residual stream",
        "source": "pangu23, Def. 1",
        "about": "How far the token features are from being all the same. "
        "Zero means that every token carries one vector: the layer has collapsed.",
        "equation": "d(H) = ||(I - e e^T) H||_F   with   e = (1, ..., 1) / sqrt(token)",
        "per": ["sequence", "layer", "place"],
        "columns": {
            "diversity": "distance from equal rows",
            "relative_residual": "diversity over the norm of H, 0 to 1",
            "cosine": "mean pairwise cosine between tokens",
        },
        "plot": ["diversity", "relative_residual", "cosine"],
        "better": "higher",
    },
    "dimension": {
        "title": "Effective dimension",
        "unit": "directions",
        "source": "pangu23, section 5.2",
        "about": "How many directions the features of all tokens really use. "
        "A model of width d that uses few of them pays for capacity that it does not have.",
        "equation": "d(eps) = min{k : sum_{i<=k} lambda_i >= eps * sum lambda_i}",
        "per": ["layer"],
        "columns": {
            "effective_dimension": "directions for 80 % of the variance",
            "effective_rank": "exp of the entropy of the singular values",
            "participation_ratio": "(sum lambda)^2 / sum lambda^2",
            "stable_rank": "||M||_F^2 / ||M||_2^2",
            "tokens": "tokens pooled",
        },
        "plot": ["effective_dimension", "effective_rank", "participation_ratio", "stable_rank"],
        "better": "higher",
    },
    "stream": {
        "title": "Residual stream",
        "unit": "that of the residual stream",
        "source": "sun24; he24",
        "about": "How large the residual stream grows, and what each sublayer adds to it. "
        "A few enormous channels are where low precision loses its digits.",
        "equation": "norm = mean_i ||x_i||_2",
        "per": ["sequence", "layer"],
        "columns": {
            "norm": "mean norm of a token",
            "attention_share": "norm of the attention branch over that of the stream",
            "ffn_share": "norm of the feed-forward branch over that of the stream",
            "largest": "largest magnitude",
            "median": "median magnitude",
            "massive": "1 where the rule of sun24 calls the largest value massive",
            "kurtosis": "kurtosis of the channels' root mean squares",
        },
        "plot": ["norm", "attention_share", "ffn_share", "largest", "kurtosis"],
        "better": None,
    },
    "spectrum": {
        "title": "Attention norm",
        "unit": "1",
        "source": "spectral25, (6)-(8)",
        "about": "The largest factor by which an attention matrix can stretch its input. "
        "It is at least 1 where rows sum to 1, and at most the square root of the length.",
        "equation": "||A||_2 <= sqrt(c_max) <= sqrt(n),   c_max = max_j sum_i A_ij",
        "per": ["sequence", "layer", "head"],
        "columns": {
            "norm": "largest singular value of A",
            "lower": "lower end of the enclosure",
            "upper": "upper end of the enclosure",
            "column_bound": "square root of the largest column sum",
            "token_bound": "square root of the number of tokens",
            "row_sum_min": "smallest row sum",
            "row_lower": "from the row sums",
            "uniform_ratio": "norm over that of uniform causal attention",
            "contraction": "||(I - e e^T) A||_2, below 1 where the head must contract",
        },
        "plot": ["norm", "uniform_ratio", "contraction"],
        "better": None,
        "bounds": [
            {"column": "norm", "limit": "column_bound", "side": "upper", "source": "spectral25"},
            {"column": "norm", "limit": "token_bound", "side": "upper", "source": "spectral25"},
            {"column": "norm", "limit": "upper", "side": "upper", "source": "wielandt50"},
            {"column": "norm", "limit": "lower", "side": "lower", "source": "golub13"},
            {"column": "norm", "limit": "row_lower", "side": "lower", "source": "spectral25"},
        ],
    },
    "attention": {
        "title": "Attention pattern",
        "unit": "see the columns",
        "source": "zhai23; xiao23; kimi25",
        "about": "Where each head looks: spread out, at one place, or at the first token. "
        "Very large logits overflow in half precision and make training spike.",
        "equation": "entropy_i = - sum_j A_ij log A_ij / log(allowed keys of row i)",
        "per": ["sequence", "layer", "head"],
        "columns": {
            "entropy": "mean over rows, 0 (one key) to 1 (uniform)",
            "sink_mass": "mean weight on the first token",
            "logit_max": "largest |logit| before softcap and mask",
            "logit_range": "largest range of logits within a row",
        },
        "plot": ["entropy", "sink_mass", "logit_max", "logit_range"],
        "better": None,
    },
    "querykey": {
        "title": "Query-key form",
        "unit": "1",
        "source": "spectral25, (4); golub13",
        "about": "The matrix that turns two tokens into a score, from the weights alone. "
        "Its condition says how uneven the directions are that a head can compare.",
        "equation": "norm = ||W_k^T W_q||_2,   condition = sigma_1 / sigma_{d_h}",
        "per": ["layer", "head"],
        "columns": {
            "norm": "largest singular value",
            "smallest": "singular value number head_width",
            "condition": "norm over smallest",
            "abs_norm": "|| |W_k|^T |W_q| ||_2",
            "prenorm_bound": "corrected causal bound on ||A||_2",
        },
        "plot": ["norm", "condition", "abs_norm", "prenorm_bound"],
        "better": "lower",
    },
    "lipschitz": {
        "title": "Local Lipschitz constant",
        "unit": "1",
        "source": "kim21; castin24",
        "about": "How much a small change of the input can grow in one block, at this input. "
        "The product of weight norms bounds nothing for attention and is shown for comparison.",
        "equation": "local = sigma_max(J_l(X))",
        "per": ["sequence", "layer"],
        "columns": {
            "local": "largest singular value of the Jacobian",
            "residual": "how far `local` is from being a singular value",
            "weights": "product of the spectral norms",
            "gradient": "norm of d loss / d stream",
        },
        "plot": ["local", "weights", "gradient"],
        "better": "lower",
    },
    "gain": {
        "title": "Diversity gain",
        "unit": "1",
        "source": "pangu23, Theorem 2",
        "about": "By how much a sublayer changes the diversity of what it was given. "
        "Theorem 2 bounds it from above; the tightness says how much that bound is worth.",
        "equation": "d(out) / d(in) <= sqrt(lambda H) s v_1",
        "per": ["sequence", "layer", "sublayer"],
        "columns": {
            "measured": "diversity out over diversity in",
            "bound": "Theorem 2 with measured constants",
            "factor": "sqrt(lambda H) s v_1",
            "sharp": "the same with the constants of this very input",
            "tightness": "bound over measured; far above 1 the bound says little",
            "violated": "1 where measured is above bound",
        },
        "plot": ["measured", "factor", "tightness"],
        "better": None,
        "bounds": [
            {"column": "measured", "limit": "bound", "side": "upper", "source": "pangu23, Thm 2"},
            {"column": "measured", "limit": "sharp", "side": "upper", "source": "pangu23"},
        ],
    },
}

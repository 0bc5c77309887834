"""Which maps of a model are kept in more bits than it is loaded as: a table, chosen by measurement."""

from collections.abc import Collection

__all__ = ["RECIPES", "recipe_dtype"]

# dtype asked for -> the last part of a map's name -> what it is packed as instead
RECIPES: dict[str, dict[str, str]] = {"int4": {"embed_tokens": "int8", "lm_head": "int8"}}


def recipe_dtype(dtype: str, names: Collection[str]) -> str:
    """What a map made of these tensors is packed as in a model loaded as `dtype`."""
    recipe = RECIPES.get(dtype, {})
    for name in names:
        kind = name.removesuffix(".weight").rpartition(".")[2]
        if kind in recipe:
            return recipe[kind]
    return dtype

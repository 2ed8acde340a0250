"""SASL mechanisms, one module each. Importing this package imports all of them, and each registers its sides."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

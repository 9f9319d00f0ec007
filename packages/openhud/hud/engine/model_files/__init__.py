"""Files of whole models: formats that packages add, and pretrained models that packages carry."""

"""Knowledge probing (Sec. 3.5): prompts with a blank, a model that is asked, and tables of it."""

"""The answer: one ranking of the findings, the cards, the step predicted after them, the words of the first screen."""

"""Everything around the weights of a merge: report, card, figures, folder, publishing; and comparisons of models."""

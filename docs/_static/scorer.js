// Scores of search results: Sphinx's, but names of older systems and the changelog come after what explains a thing.
var Scorer = {
  score: ([docname, title, anchor, description, score, filename, kind]) => {
    if (docname === "changes" || docname === "genindex") return score - 8;
    if (docname.startsWith("reference/cpprb_like.compat")) return score - 6;
    return score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};

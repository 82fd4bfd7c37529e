/* The words of the page in its language: the data bring what is not said as it stands here. */

const translated = (text) => data.words?.[text] ?? text;
const columnName = (column) => data.columns?.[column] ?? column;

/* A sentence with {name} filled in; `parts` is the same as texts and nodes. */
const say = (text, given = {}) => translated(text).replace(/\{(\w+)\}/g, (whole, name) => (name in given ? String(given[name]) : whole)).replace(/(?<=\d) (?=%)|(?<=[≈±]) (?=\d)/g, "\u00a0");
const parts = (text, given = {}) => translated(text).split(/(\{\w+\})/).filter(Boolean).map((part) => (part.startsWith("{") ? given[part.slice(1, -1)] ?? part : part));

/* Texts of which only some positions are shown: a mark stands wherever some are left out. */

const GAP = "⋯";

/* In order the index of every position, and null at each jump. */
const slotsOf = (positions) => positions.flatMap((position, i) => (i && position !== positions[i - 1] + 1 ? [null, i] : [i]));

/* The positions in words, as 0–7, 251–274. */
function runsOf(positions) {
  const ends = positions.filter((position, i) => positions[i + 1] !== position + 1);
  return positions.filter((position, i) => positions[i - 1] !== position - 1)
    .map((start, i) => (start === ends[i] ? `${start}` : `${start}–${ends[i]}`)).join(", ");
}

/* Tokens as nodes, `mark` making each, with a mark of its own at every jump. */
function withGaps(positions, mark) {
  return slotsOf(positions).map((i, slot, slots) => (i === null
    ? element("span", { class: "gap", title: say("positions {from} to {to} are not shown", { from: positions[slots[slot - 1]] + 1, to: positions[slots[slot + 1]] - 1 }) }, GAP)
    : mark(i)));
}


// The gallery shows one cell of the confusion at a time. The address says which, so that Back works and a link can be sent.
const rooms = document.getElementById("gallery");
if (rooms) {
  const cells = [...rooms.querySelectorAll("details.cell")];
  const status = rooms.querySelector(".chosen");
  const links = [...document.querySelectorAll('#confusion a[href^="#cell-"]')];
  const all = document.createElement("a");
  all.href = "#gallery";
  all.textContent = "show all";

  const show = (moved) => {
    const wanted = location.hash.slice(1);
    const target = document.getElementById(wanted);
    const every = wanted === "gallery";
    const here = every ? null : cells.find((cell) => cell.contains(target)) || cells[0];
    rooms.classList.toggle("one", Boolean(here));
    for (const cell of cells) {
      cell.classList.toggle("here", cell === here);
      cell.open = cell === here;
    }
    const own = here ? "#" + here.querySelector("[id]").id : "";
    for (const link of links) {
      if (link.getAttribute("href") === own) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current");
    }
    status.textContent = here ? here.querySelector("summary").textContent : "All cells that have images here";
    if (here && cells.length > 1) status.append(all);
    if (moved && here && here.contains(target)) {
      rooms.scrollIntoView({ block: "nearest" });
      if (rooms.getBoundingClientRect().top > window.innerHeight / 2) rooms.scrollIntoView();
      target.focus({ preventScroll: true });
    }
  };
  window.addEventListener("hashchange", () => show(true));
  // A second click on the same cell changes no address, and must lead to its images all the same.
  for (const link of links) link.addEventListener("click", () => { if (link.hash === location.hash) show(true); });
  show(location.hash.startsWith("#cell-"));
}

// In the matrix, arrow keys go from cell to cell; Tab enters and leaves it.
for (const table of document.querySelectorAll("table.matrix")) {
  const rows = [...table.tBodies[0].rows].map((row) => [...row.cells].slice(1).map((cell) => cell.querySelector("a")));
  const every = rows.flat().filter(Boolean);
  const enter = (link) => { for (const other of every) other.tabIndex = other === link ? 0 : -1; };
  if (!every.length) continue;
  enter(every.find((link) => link.hasAttribute("aria-current")) || every[0]);
  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  table.addEventListener("focusin", (event) => { if (every.includes(event.target)) enter(event.target); });
  table.addEventListener("keydown", (event) => {
    const step = steps[event.key];
    if (!step || !every.includes(event.target)) return;
    event.preventDefault();
    let row = rows.findIndex((line) => line.includes(event.target));
    let column = rows[row].indexOf(event.target);
    do {
      row += step[0];
      column += step[1];
    } while (rows[row] && column in rows[row] && !rows[row][column]);
    if (rows[row] && rows[row][column]) rows[row][column].focus();
  });
}

// One wish for all sections: whoever wants to see where it looked wants it everywhere.
const wishes = [...document.querySelectorAll("input.looked")];
for (const wish of wishes) {
  wish.addEventListener("change", () => {
    for (const other of wishes) other.checked = wish.checked;
    document.body.classList.toggle("looking", wish.checked);
  });
}

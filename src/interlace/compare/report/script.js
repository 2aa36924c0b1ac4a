"use strict";
(() => {
  const root = document.documentElement, button = document.getElementById("theme");
  const asked = new URLSearchParams(location.search).get("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = asked === "dark" || asked === "light" ? asked : null;
  const frames = () => document.querySelectorAll("iframe");
  const show = () => {
    const theme = chosen || (system.matches ? "dark" : "light");
    root.dataset.theme = theme;
    button.textContent = theme === "dark" ? "Light" : "Dark";
    for (const frame of frames()) {
      const inner = frame.contentDocument && frame.contentDocument.documentElement;
      if (inner) inner.dataset.theme = theme;
    }
  };
  system.addEventListener("change", show);
  button.addEventListener("click", () => { chosen = root.dataset.theme === "dark" ? "light" : "dark"; show(); });
  for (const frame of frames()) frame.addEventListener("load", show);
  show();

  const chips = [...document.querySelectorAll(".chip")];
  const kept = new Set();
  const light = (set) => {
    if (set.size) document.body.dataset.focus = "";
    else delete document.body.dataset.focus;
    for (const m of document.querySelectorAll(".m")) m.classList.toggle("kept", set.has(m.dataset.m));
  };
  for (const chip of chips) {
    const id = chip.dataset.focus;
    chip.addEventListener("click", () => {
      kept.has(id) ? kept.delete(id) : kept.add(id);
      chip.setAttribute("aria-pressed", String(kept.has(id)));
      light(kept);
    });
    chip.addEventListener("mouseenter", () => light(new Set([...kept, id])));
    chip.addEventListener("mouseleave", () => light(kept));
  }

  const tip = document.getElementById("tip");
  document.addEventListener("mousemove", (event) => {
    const target = event.target.closest("[data-tip]");
    tip.classList.toggle("on", Boolean(target));
    if (!target) return;
    tip.textContent = target.dataset.tip;
    const right = event.clientX + 14 + tip.offsetWidth > innerWidth;
    tip.style.left = `${right ? event.clientX - tip.offsetWidth - 10 : event.clientX + 14}px`;
    tip.style.top = `${event.clientY + 16}px`;
  });
})();

// Code and tables that are wider than the window scroll inside themselves. A keyboard scrolls only what it can reach: so
// each one that scrolls gets a tab stop, and loses it when it fits again.
(() => {
  const mark = (box) => {
    const scrolls = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight;
    scrolls ? box.setAttribute("tabindex", "0") : box.removeAttribute("tabindex");
  };
  const watch = () => {
    const boxes = document.querySelectorAll("pre, .table-wrapper, .sig, .sidebar-scroll, .toc-scroll");
    const sizes = new ResizeObserver((seen) => seen.forEach((one) => mark(one.target)));
    boxes.forEach((box) => { mark(box); sizes.observe(box); });
  };
  document.readyState === "loading" ? document.addEventListener("DOMContentLoaded", watch) : watch();
})();

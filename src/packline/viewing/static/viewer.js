// What a token is, when it is pointed at or reached with the keyboard. Pages work without it.
//
// Each stretch of tokens is one stop of the Tab key; arrows, Home and End go from token to token in it, Escape
// puts the card away. Texts are set as text, never as markup, and nothing is loaded.
"use strict";

(() => {
  const card = document.createElement("div");
  card.className = "card";
  card.hidden = true;
  card.setAttribute("role", "status");
  document.body.append(card);
  let current = null;

  // Tokens that are drawn in one box: a letter, and marks on it that are tokens of their own.
  const isMark = (one) => one !== null && /(^| )z\d/.test(one.className);
  const cluster = (token) => {
    let first = token;
    while (isMark(first)) first = first.previousElementSibling;
    const found = [first];
    while (isMark(found.at(-1).nextElementSibling)) found.push(found.at(-1).nextElementSibling);
    return found;
  };

  const rows = (token) => {
    const data = token.dataset;
    const segment = token.closest(".segment");
    const text = token.textContent;
    const found = [["text", text, true], ["id", data.ids.split(" ").map(Number).join(", "), true]];
    const together = cluster(token);
    if (together.length > 1) {
      const named = (one) => `${isMark(one) ? "\u25cc" : ""}${one.textContent} ${one.dataset.ids}`;
      found.push(["in this box", together.map(named).join(", "), true]);
    }
    const ids = data.ids.split(" ");
    if (ids.length > 1) found.push(["tokens", `${ids.length}, which only together are a character`]);
    if (data.bytes) found.push(["bytes", data.bytes, true]);
    if (/^\p{M}/u.test(text)) found.push(["begins", "with a combining mark"]);
    found.push(["position", Number(data.position).toLocaleString("en")]);
    const turn = segment && segment.dataset.turn;
    if (turn) found.push(["turn", `${Number(data.segment) + 1}, ${turn}`]);
    else if (data.segment) found.push(["segment", data.segment]);
    if (data.loss) found.push(["loss", data.loss === "1" ? "in the loss" : "no loss (never a target)"]);
    if (segment && segment.dataset.document) {
      found.push(["document", Number(segment.dataset.document).toLocaleString("en")]);
    }
    if (segment && segment.dataset.origin) found.push(["from", segment.dataset.origin]);
    return found;
  };

  const hide = () => {
    if (current) current.classList.remove("now");
    current = null;
    card.hidden = true;
  };

  const show = (token) => {
    if (token === current) return;
    hide();
    current = token;
    token.classList.add("now");
    const list = document.createElement("dl");
    for (const [name, value, mono] of rows(token)) {
      const term = document.createElement("dt");
      const text = document.createElement("dd");
      term.textContent = name;
      text.textContent = value;
      if (mono) text.className = "mono";
      list.append(term, text);
    }
    card.replaceChildren(list);
    card.hidden = false;
    const box = token.getClientRects()[0];
    const room = document.documentElement.clientWidth;
    const left = Math.max(8, Math.min(box.left, room - card.offsetWidth - 8));
    const below = box.bottom + 8 + card.offsetHeight <= window.innerHeight;
    const top = below ? box.bottom + 8 : Math.max(8, box.top - card.offsetHeight - 8);
    card.style.left = `${left + window.scrollX}px`;
    card.style.top = `${top + window.scrollY}px`;
  };

  const tokenOf = (target) => (target instanceof Element ? target.closest(".tokens .t") : null);

  document.addEventListener("mouseover", (event) => {
    const token = tokenOf(event.target);
    if (token) show(token);
    else if (current && !current.parentElement.matches(":focus")) hide();
  });

  // Stops of the Tab key, and buttons that copy: of the page, and of what a live form puts into it.
  const prepare = (root) => {
    const stretches = root.querySelectorAll(".tokens");
    stretches.forEach((stretch, place) => {
      stretch.tabIndex = 0;
      stretch.setAttribute("role", "group");
      stretch.setAttribute("aria-label", `Tokens, stretch ${place + 1} of ${stretches.length}: arrows move`);
    });
    for (const button of root.querySelectorAll("button[data-copy]")) {
      button.hidden = false;
      button.addEventListener("click", async () => {
        const text = button.parentElement.querySelector("pre");
        try {
          await navigator.clipboard.writeText(text.textContent);
          button.textContent = "Copied";
        } catch {
          getSelection().selectAllChildren(text); // without the permission, at least mark it
          button.textContent = "Marked: copy it with the keyboard";
        }
      });
    }
  };
  prepare(document);

  document.addEventListener("focusin", (event) => {
    const stretch = event.target;
    if (stretch.matches(".tokens") && stretch.matches(":focus-visible")) {
      const token = stretch.querySelector(".t");
      if (token) show(token);
    }
  });
  document.addEventListener("focusout", hide);

  const moves = {
    ArrowRight: (token) => token.nextElementSibling,
    ArrowLeft: (token) => token.previousElementSibling,
    Home: (token) => token.parentElement.firstElementChild,
    End: (token) => token.parentElement.lastElementChild,
  };

  // The first token of the next (or previous) hit of a search, or else stretch that is in the loss.
  const learned = (forth) => {
    const tokens = [...document.querySelectorAll(".tokens .t")];
    const searched = document.querySelector(".tokens .t.h") !== null;
    const has = (token) =>
      token !== undefined && (searched ? token.classList.contains("h") : token.dataset.loss === "1");
    const starts = tokens.filter((token, place) => has(token) && !has(tokens[place - 1]));
    if (!current) return forth ? starts[0] : undefined;
    const after = Node.DOCUMENT_POSITION_FOLLOWING, before = Node.DOCUMENT_POSITION_PRECEDING;
    const there = starts.filter((token) => current.compareDocumentPosition(token) & (forth ? after : before));
    return forth ? there[0] : there[there.length - 1];
  };

  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return hide();
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target.matches("input, textarea, select");
    if (event.key === "/" && !typing) {
      event.preventDefault();
      document.querySelector("header.folded")?.classList.remove("folded");
      document.getElementById("jump-number")?.focus();
      return;
    }
    if (!typing && (event.key === "n" || event.key === "p")) {
      const to = learned(event.key === "n");
      if (to) {
        to.parentElement.focus({ preventScroll: true });
        show(to);
        to.scrollIntoView({ block: "center" });
      }
      return;
    }
    if (!typing && (event.key === "j" || event.key === "k")) {
      const ways = [...document.querySelectorAll('nav[aria-label="Neighbors"] a')];
      ways.find((way) => (event.key === "j" ? way.textContent.endsWith("›") : way.textContent.startsWith("‹")))?.click();
      return;
    }
    const stretch = event.target;
    const move = moves[event.key];
    if (!move || !stretch.matches(".tokens")) return;
    const from = current && stretch.contains(current) ? current : null;
    const next = from ? move(from) : stretch.querySelector(".t");
    event.preventDefault();
    if (next) {
      show(next);
      next.scrollIntoView({ block: "nearest" });
    }
  });

  // Marks of white space are copied as the white space that they stand for.
  document.addEventListener("copy", (event) => {
    const chosen = document.getSelection(), range = chosen.rangeCount ? chosen.getRangeAt(0) : null;
    if (!range || !(range.commonAncestorContainer.closest?.(".tokens"))) return;
    const part = range.cloneContents();
    for (const mark of part.querySelectorAll("i.b")) mark.remove();
    for (const mark of part.querySelectorAll("i.s")) {
      mark.textContent = mark.textContent.replaceAll("·", " ").replaceAll("→", "\t");
    }
    event.clipboardData.setData("text/plain", part.textContent);
    event.preventDefault();
  });

  // A slider beside a number: moving it writes the number, letting go asks for the page.
  for (const slider of document.querySelectorAll("input[type=range][data-for]")) {
    const field = document.getElementById(slider.dataset.for);
    slider.hidden = false;
    slider.addEventListener("input", () => { field.value = slider.value; });
    slider.addEventListener("change", () => slider.form.requestSubmit());
    field.addEventListener("input", () => { slider.value = field.value; });
  }

  // A live form: the page of its values is asked for a moment after the last change, and its result put in place.
  for (const form of document.querySelectorAll("form[data-live]")) {
    let waiting = 0, asked = 0;
    const renew = async () => {
      const address = `${form.action}?${new URLSearchParams(new FormData(form))}`, own = ++asked;
      const answer = await fetch(address, { credentials: "same-origin" }).catch(() => null);
      if (!answer || own !== asked) return;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const there = document.getElementById("live");
      const found = page.getElementById("live") || page.querySelector("main .note.bad");
      if (own !== asked || !there || !found) return;
      const open = [...there.querySelectorAll("details")].map((one) => one.open);
      hide();
      if (found.id === "live") there.replaceChildren(...found.childNodes);
      else there.replaceChildren(found);
      [...there.querySelectorAll("details")].forEach((one, place) => { one.open = Boolean(open[place]); });
      prepare(there);
      history.replaceState(null, "", address);
    };
    const soon = () => { clearTimeout(waiting); waiting = setTimeout(renew, 150); };
    form.addEventListener("input", soon);
    form.addEventListener("submit", () => { clearTimeout(waiting); asked += 1; });  // the page itself comes now
  }

  // A search goes on by itself until there is a page of hits, or the end of the store.
  const goOn = async () => {
    const rows = () => document.querySelectorAll("#live tbody tr").length;
    let way;
    while ((way = document.querySelector('#live nav[aria-label="Search"] a')) && rows() < 20) {
      const answer = await fetch(way.href, { credentials: "same-origin" }).catch(() => null);
      if (!answer || !answer.ok) return;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const found = page.getElementById("live"), there = document.getElementById("live");
      if (!found || !there) return;
      const body = there.querySelector("tbody");
      if (!body) { there.replaceChildren(...found.childNodes); continue; }
      body.append(...found.querySelectorAll("tbody tr"));
      there.querySelector("nav").replaceWith(found.querySelector("nav"));
    }
  };
  goOn();

  // The switch to another store needs no button.
  const choice = document.getElementById("switch-store");
  if (choice) {
    choice.addEventListener("change", () => choice.form.requestSubmit());
    choice.form.querySelector("button").hidden = true;
  }

  // A text that is too long is cut, and the page says so.
  for (const area of document.querySelectorAll("textarea[maxlength]")) {
    const most = area.maxLength, notice = document.createElement("p");
    notice.className = "note cut";
    notice.setAttribute("role", "status");
    notice.hidden = true;
    area.removeAttribute("maxlength");
    area.after(notice);
    area.addEventListener("input", () => {
      const count = area.value.length;
      notice.hidden = count < most || (count === most && notice.hidden);
      if (count <= most) return;
      area.value = area.value.slice(0, most);
      const named = (one) => one.toLocaleString("en");
      notice.textContent = `first ${named(most)} of ${named(count)} characters`;
      notice.hidden = false;
    });
  }

  // Columns of a data table can be hidden; a later page of the same kind keeps them so.
  for (const table of document.querySelectorAll(".data table")) {
    const key = `columns ${location.pathname}`, hidden = new Set(JSON.parse(sessionStorage.getItem(key) || "[]"));
    const heads = [...table.querySelectorAll("thead th")], list = document.createElement("div");
    const name = (head) => (head.querySelector("a") || head.firstChild).textContent;
    const show = () => {
      for (const row of table.rows) {
        heads.forEach((head, place) => { row.cells[place].hidden = hidden.has(name(head)); });
      }
    };
    for (const head of heads.slice(1)) {
      const label = document.createElement("label"), box = document.createElement("input");
      box.type = "checkbox";
      box.checked = !hidden.has(name(head));
      box.addEventListener("change", () => {
        if (box.checked) hidden.delete(name(head));
        else hidden.add(name(head));
        sessionStorage.setItem(key, JSON.stringify([...hidden]));
        show();
      });
      label.append(box, ` ${name(head)}`);
      list.append(label);
    }
    const details = document.createElement("details"), summary = document.createElement("summary");
    details.className = "columns";
    summary.textContent = "Columns";
    details.append(summary, list);
    table.parentElement.before(details);
    show();
  }

  // On a narrow window, the navigation is behind a button.
  const header = document.querySelector("header.top");
  const menu = header && header.querySelector("button.menu");
  if (menu) {
    menu.hidden = false;
    header.classList.add("folded");
    menu.addEventListener("click", () => {
      menu.setAttribute("aria-expanded", String(!header.classList.toggle("folded")));
    });
  }
})();

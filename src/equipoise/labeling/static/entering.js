// Links: the token is in the part of an address that no server sees, and leaves the address at once.

import { ask } from "./dom.js";

/** Send the token of the address, if it has one, for a cookie; after a lost connection it is sent again. */
export const enter = async (path) => {
  const found = /^#token=(.+)$/.exec(location.hash);
  if (!found) return;
  let token = found[1];
  try { token = decodeURIComponent(token); } catch { /* as it is */ }
  try {
    await ask(path, { token });
  } catch (error) {
    if (error.status !== 401) throw error;
    history.replaceState(null, "", location.pathname);
    throw error;
  }
  history.replaceState(null, "", location.pathname);
};

"""Ways to change the pixels inside a box.  Every editor implements `rekey.editing.Editor`."""

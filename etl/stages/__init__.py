"""What every stage does alike: lease, resume, marker, update, run record, layout of folders.

What several packages must know of a stage also belongs here: its folder and format version (`layout`), the facts that
it shows when it ends (`summary`), the names of its files (`names`). What a stage computes is in its own
package."""

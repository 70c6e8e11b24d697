"""Makes what is made in the documentation: tables of evidence, the reference, the pictures, the site.

python -m docs.make                 write the tables of docs/evidence anew from docs/evidence/data/*.json
python -m docs.make --check         say which pages are not what the data gives; exit 1 if any
python -m docs.make record ...      keep a result as data (see docs/design/documentation.md)
python -m docs.make site            build the site into build/docs (`make docs`)
python -m docs.make plots           draw the pictures of docs/evidence anew from its data
python -m docs.make pictures        make the README's pictures of a real run (`make pictures`)
"""

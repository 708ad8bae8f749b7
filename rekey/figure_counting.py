FORMS={}
paint=None
